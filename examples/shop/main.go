// Command shop is a small web application with the limits that most applications need:
// plans, failed logins, a monthly budget in the order's transaction, tokens that are
// reserved and settled, and the pace of a service that it calls. It also sets
// up stored policies, metrics, the denial log and the janitor.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	_ "time/tzdata" // for machines without a time zone database

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/policies"
	"github.com/pglimit/pglimit/prompglimit"
)

// Each is the default of a stored policy: `pglimit policy set` changes it within a second.
var defaults = []limiter.Policy{
	{Name: "free", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Minute, Burst: 10},
	{Name: "paid", Algorithm: limiter.TokenBucket, Limit: 600, Period: time.Minute, Burst: 100},
	{Name: "login", Algorithm: limiter.SlidingWindowCounter, Limit: 5, Period: time.Hour},
	{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00, Calendar: limiter.Month, TimeZone: "Europe/Vienna"},
	{Name: "tokens", Algorithm: limiter.FixedWindow, Limit: 500, Calendar: limiter.Day},
	{Name: "payments", Algorithm: limiter.LeakyBucketQueue, Limit: 10, Period: time.Second, Burst: 50},
}

type shop struct {
	pool      *pgxpool.Pool // of the application
	decisions *pgxpool.Pool // of the limiter alone: neither waits for the other's connections
	policies  *policies.Policies
	limits    *limiter.Limiter
	denials   *deniallog.Log
	metrics   *prometheus.Registry
	payments  *http.Client // waits for its turn, for all processes together
	provider  string       // the URL of the payment provider
}

// open connects and creates the tables. Close the shop in the end, also after an error.
func open(ctx context.Context, url, provider string, config limiter.Config) (*shop, error) {
	s := &shop{provider: provider, metrics: prometheus.NewRegistry()}
	var err error
	if s.pool, err = pgxpool.New(ctx, url); err != nil {
		return s, err
	}
	if s.decisions, err = pgxpool.New(ctx, url); err != nil {
		return s, err
	}
	if err = migrate(ctx, s.pool); err != nil {
		return s, err
	}
	if s.policies, err = policies.Open(ctx, s.decisions, nil); err != nil {
		return s, err
	}
	if s.denials, err = deniallog.New(s.decisions, nil); err != nil {
		return s, err
	}
	metrics := prompglimit.New(&prompglimit.Config{Pool: s.decisions})
	s.metrics.MustRegister(metrics)
	config.Policies, config.DenialLog, config.Observe = s.policies, s.denials, metrics.Observe
	if s.limits, err = limiter.New(s.decisions, &config); err != nil {
		return s, err
	}
	metrics.Watch(s.limits)
	all := func(*http.Request) (string, error) { return "all", nil }
	s.payments = &http.Client{Transport: httplimit.Transport(s.limits, httplimit.EachNamed(all, s.policies, "payments"), nil)}
	return s, s.policies.Default(defaults...)
}

func (s *shop) close() {
	if s.limits != nil {
		_ = s.limits.Close()
	}
	if s.policies != nil {
		_ = s.policies.Close()
	}
	for _, pool := range []*pgxpool.Pool{s.decisions, s.pool} {
		if pool != nil {
			pool.Close()
		}
	}
}

// background deletes rows that are no longer needed and writes the counts of denials, until
// ctx ends. Any number of processes may do so.
func (s *shop) background(ctx context.Context) error {
	sweeper, err := janitor.New(s.decisions, nil)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { _ = sweeper.Run(ctx) })
	running.Go(func() { _ = s.denials.Run(ctx) })
	running.Wait()
	return nil
}

// migrate creates pglimit's tables and the application's.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (
		account text, number text, cents bigint NOT NULL, PRIMARY KEY (account, number))`)
	return err
}

// signals end the program: Ctrl-C, and what a service manager sends.
var signals = []os.Signal{os.Interrupt, syscall.SIGTERM}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("PAYMENTS_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, provider string) error {
	s, err := open(ctx, url, provider, limiter.Config{})
	defer s.close()
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "localhost:8080")
	if err != nil {
		return err
	}
	fmt.Println("http://localhost:8080; Ctrl-C ends it")
	return s.serve(ctx, listener)
}

// serve answers requests until ctx ends. It returns when those that ran are answered and the
// background loops have ended, so that close takes nothing from them.
func (s *shop) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	served, ended := make(chan error, 1), make(chan error, 1)
	go func() { ended <- s.background(background) }()
	go func() { served <- server.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		within, cancel := context.WithTimeout(background, 10*time.Second) // for requests that run
		if err = server.Shutdown(within); err != nil {
			err = errors.Join(err, server.Close()) // cuts the rest
		}
		cancel()
	}
	stop()
	return errors.Join(err, <-ended)
}
