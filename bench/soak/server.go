package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/migrations"
)

// server is a PostgreSQL with pglimit's tables.
type server struct{ *servers.Postgres }

func startServer(ctx context.Context, p plan) (*server, error) {
	progress("starting PostgreSQL")
	var further map[string]string
	if p.Quick { // it ends before autovacuum's default of a minute
		further = map[string]string{"autovacuum_naptime": "2s"}
	}
	local, err := servers.StartPostgres(ctx, further)
	if err != nil {
		return nil, err
	}
	s := &server{local}
	pool, err := s.pool(ctx, "setup", 2)
	if err == nil {
		err = migrations.Up(ctx, pool)
		pool.Close()
	}
	if err != nil {
		_ = s.Close() // the first error is reported
	}
	return s, err
}

// pool opens a pool whose connections stay open, all from the start.
func (s *server) pool(ctx context.Context, name string, connections int32) (*pgxpool.Pool, error) {
	return s.Connect(ctx, connections, func(c *pgx.ConnConfig) { c.RuntimeParams["application_name"] = "soak " + name })
}

// sweeper is a running janitor with its own connections.
type sweeper struct {
	janitor *janitor.Janitor
	pool    *pgxpool.Pool
	clock   clock
	cancel  context.CancelFunc
	ended   chan struct{}

	mu      sync.Mutex
	sweeps  int64
	last    time.Time     // the clock's time at the end of the last sweep
	longest time.Duration // from the end of one sweep to the end of the next
}

// startJanitor runs a janitor until ctx ends. Its warnings go to fail.
func (s *server) startJanitor(ctx context.Context, p plan, c clock, fail func(error)) (*sweeper, error) {
	pool, err := s.pool(ctx, "janitor", 2)
	if err != nil {
		return nil, err
	}
	w := &sweeper{pool: pool, clock: c, ended: make(chan struct{}), last: c.Now()}
	const lease = 30 * time.Second // by the real clock
	w.janitor, err = janitor.New(pool, &janitor.Config{
		Interval: p.Sweep, Lease: lease * time.Duration(p.Speed), Now: c.Now, OnSweep: w.swept,
		Logger: slog.New(slog.NewTextHandler(complaints(fail), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		pool.Close()
		return nil, err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	go func() {
		defer close(w.ended)
		if err := w.janitor.Run(ctx); err != nil {
			fail(err)
		}
	}()
	return w, nil
}

func (w *sweeper) swept(janitor.Removed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	w.sweeps++
	w.longest = max(w.longest, now.Sub(w.last))
	w.last = now
}

// state returns the number of sweeps, and the longest time from the end of one to the end
// of the next, by the clock.
func (w *sweeper) state() (sweeps int64, longest time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sweeps, max(w.longest, w.clock.Now().Sub(w.last))
}

// stop ends it and returns when it has ended.
func (w *sweeper) stop() {
	w.cancel()
	<-w.ended
	w.pool.Close()
}

// complaints is a log in which each line is a failure.
type complaints func(error)

func (c complaints) Write(line []byte) (int, error) {
	c(errors.New("the janitor: " + strings.TrimSpace(string(line))))
	return len(line), nil
}
