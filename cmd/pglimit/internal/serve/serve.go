package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/httpapi"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/webhook"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Bounds of a request over HTTP.
const (
	maxHeader     = 16 << 10 // bytes
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	maxStreamsH2  = 250 // of a connection
)

// Server is a server from its preparation to its end.
type Server struct {
	options Options
	address httplimit.Address
	room    room
	gate    auth.Gate
	files   []*followed
	tls     *identity // nil: without
	// How the addresses use it; nil: without.
	webTLS, rpcTLS, admTLS *tls.Config
	stored                 atomic.Pointer[[]policies.Stored] // of the file
	rates                  *ratelimit.Config                 // of --ratelimit-config, at the start

	telemetry  *telemetry
	webhook    *webhook.Sender // nil: none
	policies   *policies.Policies
	tasks      sync.WaitGroup // in the background
	ready      atomic.Bool
	logged     throttle.Throttle // errors in the access log
	http, grpc []net.Listener
	adm        []net.Listener
	// URLs has the addresses of http, grpc and admin.
	URLs map[string]string
}

// Prepare checks the options, reads the files and listens. Close the Server.
func Prepare(ctx context.Context, o Options) (_ *Server, err error) {
	s := &Server{options: o, URLs: map[string]string{}}
	if s.address, err = o.check(); err != nil {
		return nil, err
	}
	if o.Webhook != "" {
		if s.webhook, err = webhook.New(o.Webhook, o.WebhookSecret); err != nil {
			return nil, err
		}
	}
	s.room.free.Store(int64(o.MaxConnections))
	if o.Tokens != "" {
		s.files = append(s.files, &followed{what: "--tokens", paths: []string{o.Tokens}, use: func(c [][]byte) error {
			t, err := auth.Parse(o.Tokens, c[0])
			if err == nil {
				s.gate.Set(t)
			}
			return err
		}})
	}
	if o.Policies != "" {
		s.files = append(s.files, &followed{what: "--policies", paths: []string{o.Policies}, use: s.usePolicies})
	}
	if o.TLS.Cert != "" {
		s.tls = &identity{}
		s.files = append(s.files, &followed{what: "--tls-cert", paths: o.TLS.paths(), use: s.tls.use})
	}
	s.webTLS, s.rpcTLS, s.admTLS = s.tls.config(true, "h2", "http/1.1"), s.tls.config(true, "h2"), s.tls.config(false, "h2", "http/1.1")
	for _, f := range s.files {
		if err := f.start(); err != nil {
			return nil, err
		}
	}
	if e := o.RateLimit; e != nil && e.ConfigType == "FILE" {
		if s.rates, _, err = e.Files().Load(); err != nil {
			return nil, fmt.Errorf("--ratelimit-config: %w", err)
		}
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	for _, a := range []struct {
		name, address string
		to            *[]net.Listener
	}{{"http", o.HTTP, &s.http}, {"grpc", o.GRPC, &s.grpc}, {"admin", o.Admin, &s.adm}} {
		if a.address == "" {
			continue
		}
		listeners, url, err := webpage.Listen(ctx, a.address)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", a.name, err)
		}
		for _, l := range listeners {
			*a.to = append(*a.to, s.room.bound(l))
		}
		if a.name == "grpc" {
			url = strings.TrimPrefix(url, "http://")
		} else if s.tls != nil {
			url = "https" + strings.TrimPrefix(url, "http")
		}
		s.URLs[a.name] = url
	}
	return s, nil
}

// Close closes the listeners. After Run it does nothing.
func (s *Server) Close() {
	for _, list := range [][]net.Listener{s.http, s.grpc, s.adm} {
		for _, l := range list {
			_ = l.Close()
		}
	}
}

// usePolicies makes the policies of the file the defaults. A policy that was deleted from the
// file stays a default until the next start.
func (s *Server) usePolicies(contents [][]byte) error {
	f, err := policyfile.Read(s.options.Policies, bytes.NewReader(contents[0]))
	if err != nil {
		return err
	}
	if len(f.Overrides) > 0 {
		return fmt.Errorf("%s has overrides, which only the database can have: run `pglimit policy import`", s.options.Policies)
	}
	if s.policies != nil {
		err = s.setDefaults(f.Policies)
	}
	if err == nil {
		s.stored.Store(&f.Policies)
	}
	return err
}

func (s *Server) setDefaults(stored []policies.Stored) error {
	all := make([]limiter.Policy, len(stored))
	for i, p := range stored {
		all[i] = p.Policy
	}
	return s.policies.Default(all...)
}

// defaults returns the policies of the file.
func (s *Server) defaults() []policies.Stored {
	if list := s.stored.Load(); list != nil {
		return *list
	}
	return nil
}

// Run serves over the database of pool until ctx ends, which is not an error, or a listener
// fails. It calls started when it answers.
func (s *Server) Run(ctx context.Context, pool *pgxpool.Pool, started func() error) (err error) {
	o := s.options
	if s.telemetry, err = startTelemetry(ctx, pool, o.Version, &s.room); err != nil {
		return fmt.Errorf("OpenTelemetry: %w: correct its environment variables OTEL_…", err)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		stop()
		s.tasks.Wait()
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if err := s.telemetry.close(last); err != nil {
			o.Logger.Warn("pglimit: telemetry was not sent", "error", err)
		}
	}()
	servers, err := s.servers(background)
	if err != nil {
		return err
	}
	defer servers.close()
	servers.serve()
	announce := sync.OnceValue(started)
	err = connect.Await(ctx, o.Logger, func() { _ = announce() }, func() (err error) {
		s.policies, err = policies.Open(ctx, pool, &policies.Config{KeySecret: o.KeySecret, Program: "pglimit serve", Logger: o.Logger})
		return err
	})
	switch {
	case err != nil && ctx.Err() != nil: // it has waited until its end
		return servers.drain()
	case err != nil:
		return err
	}
	defer s.policies.Close()
	if err := s.setDefaults(s.defaults()); err != nil {
		return err
	}
	denials, err := deniallog.New(pool, &deniallog.Config{KeySecret: o.KeySecret, Logger: o.Logger})
	if err != nil {
		return err
	}
	l, err := limiter.New(pool, &limiter.Config{Timeout: o.Timeout, Policies: s.policies, KeySecret: o.KeySecret, Observe: s.telemetry.observe, DenialLog: denials, Logger: o.Logger})
	if err != nil {
		return err
	}
	defer l.Close()
	s.telemetry.watch(l)
	run := func(what string, task func(context.Context) error) {
		s.tasks.Go(func() {
			if err := task(background); err != nil {
				o.Logger.Error("pglimit: a task ended", "task", what, "error", err)
			}
		})
	}
	run("denials", denials.Run)
	if s.webhook != nil {
		s.telemetry.registry.MustRegister(s.webhook.Deliveries)
		run("webhook", func(ctx context.Context) error { return s.policies.Events(ctx, s.webhook.Deliver) })
	}
	if !o.NoJanitor {
		j, err := janitor.New(pool, &janitor.Config{Logger: o.Logger})
		if err != nil {
			return err
		}
		run("janitor", j.Run)
	}
	if err := servers.open(background, pool, l); err != nil {
		return err
	}
	for _, f := range s.files {
		s.tasks.Go(func() { f.follow(background, lookEvery, o.Logger) })
	}
	return servers.run(ctx, announce)
}

// servers listen. Until open is called they answer that they are not ready.
type servers struct {
	*Server
	api, adm  *webpage.Graceful
	v1, pages later
	hasPages  bool
	page      func() // closes the dashboard
	grpc      *grpc.Server
	rate      *ratelimit.Server // nil: none
	health    *health.Server
	failed    chan error
}

// servers returns servers that are not open. Their tasks end with ctx.
func (s *Server) servers(ctx context.Context) (all *servers, err error) {
	all = &servers{Server: s, page: func() {}, health: health.NewServer(), failed: make(chan error, len(s.http)+len(s.grpc)+len(s.adm))}
	if all.rate, err = s.startRateLimit(ctx, all.health); err != nil {
		return nil, err
	}
	all.grpc = s.newGRPC(all.health, all.rate)
	all.serving(healthpb.HealthCheckResponse_NOT_SERVING)
	all.api = s.newHTTP(s.telemetry.http(&all.v1), s.webTLS)
	var page http.Handler
	if host, _, err := net.SplitHostPort(s.options.Admin); err == nil && (s.options.Tokens != "" || s.options.NoAuth || webpage.Loopback(host)) {
		all.hasPages, page = true, &all.pages
	}
	all.adm = s.newHTTP(s.admin(page, all.rate), s.admTLS)
	return all, nil
}

// open lets the servers answer by a limiter over pool.
func (s *servers) open(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter) error {
	o := s.options
	host, _, _ := net.SplitHostPort(o.HTTP)
	api, err := httpapi.New(httpapi.Config{
		Limiter: l, Policies: s.policies, Keys: inspect.New(pool), KeySecret: o.KeySecret, Gate: &s.gate,
		Local: o.open() && webpage.Loopback(host) && !o.NoAuth, Address: s.address, Observe: s.observe, Logger: o.Logger,
		Defaults: s.defaults,
	})
	if err != nil {
		return err
	}
	if s.hasPages {
		host, _, _ := net.SplitHostPort(o.Admin)
		data, err := dashboard.Open(ctx, pool, o.KeySecret, o.Logger)
		if err != nil {
			return err
		}
		s.page = func() { _ = data.Close() }
		page, err := dashboard.New(dashboard.Config{Source: data, Version: o.Version, Database: connect.Describe(pool), Hashed: o.KeySecret != nil, Host: host, Logger: o.Logger})
		if err != nil {
			return err
		}
		s.pages.set(page)
	}
	s.v1.set(api)
	if s.rate != nil {
		s.rate.SetLimiter(l)
	}
	s.serving(healthpb.HealthCheckResponse_SERVING)
	return nil
}

// serving sets the state of gRPC's health checks, but for those that ratelimit.Server sets.
func (s *servers) serving(state healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", state)
	for name := range s.grpc.GetServiceInfo() {
		s.health.SetServingStatus(name, state)
	}
}

// newHTTP returns a server with the bounds of a request.
func (s *Server) newHTTP(h http.Handler, secure *tls.Config) *webpage.Graceful {
	return webpage.NewGraceful(&http.Server{
		Handler: h, TLSConfig: secure, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: maxStreamsH2},
		ErrorLog: slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug), // what clients do wrong
	})
}

// serve begins to answer.
func (s *servers) serve() {
	serve := func(listeners []net.Listener, serve func(net.Listener) error) {
		for _, l := range listeners {
			go func() { s.failed <- serve(l) }()
		}
	}
	web := func(server *webpage.Graceful) func(net.Listener) error {
		return func(l net.Listener) error {
			if s.tls != nil {
				return server.ServeTLS(l, "", "")
			}
			return server.Serve(l)
		}
	}
	serve(s.Server.http, web(s.api))
	serve(s.Server.grpc, s.grpc.Serve)
	serve(s.Server.adm, web(s.adm))
}

// close ends what drain has not ended.
func (s *servers) close() {
	_, _ = s.api.Close(), s.adm.Close()
	s.grpc.Stop()
	s.page()
}

// run is ready until ctx ends or a listener fails, and then stops gracefully.
func (s *servers) run(ctx context.Context, started func() error) error {
	s.ready.Store(true)
	err := started()
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-s.failed:
		}
	}
	return errors.Join(err, s.drain())
}

// drain ends readiness, then the listeners and requests, then the admin address.
func (s *servers) drain() error {
	s.ready.Store(false)
	s.health.Shutdown()
	if s.rate != nil {
		s.rate.Drain()
	}
	s.api.Drain()
	s.adm.Drain()
	time.Sleep(s.options.DrainDelay)
	ctx, cancel := context.WithTimeout(context.Background(), s.options.DrainTimeout)
	defer cancel()
	var ending sync.WaitGroup
	cut := func(what string) {
		s.options.Logger.Warn("pglimit: some requests were ended before their answer was complete", "interface", what)
	}
	ending.Go(func() {
		if s.api.Shutdown(ctx, s.options.DrainTimeout/3) != nil {
			cut("http")
			_ = s.api.Close()
		}
	})
	ending.Go(func() {
		forced := context.AfterFunc(ctx, func() {
			cut("grpc")
			s.grpc.Stop()
		})
		s.grpc.GracefulStop()
		forced()
	})
	ending.Wait()
	return s.adm.Close()
}
