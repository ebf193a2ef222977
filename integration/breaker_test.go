package integration

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/throwaway"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

const breakForUs = int64(limiter.DefaultBreakFor / time.Microsecond)

var (
	failsOpen   = limiter.Policy{Name: "open", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	failsClosed = limiter.Policy{Name: "closed", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
)

// dialer counts a pool's ways to the server, and can close them.
type dialer struct {
	url     func() string // of the server, which changes when a container restarts
	dials   atomic.Int64
	down    atomic.Bool
	hangs   atomic.Bool
	arrived chan struct{} // while it hangs
	release chan struct{}
}

func newDialer(url func() string) *dialer {
	return &dialer{url: url, arrived: make(chan struct{}), release: make(chan struct{})}
}

func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d.dials.Add(1)
	if d.hangs.Load() {
		select {
		case d.arrived <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case <-d.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if d.down.Load() {
		return nil, errors.New("the way is closed")
	}
	config, err := pgconn.ParseConfig(d.url())
	if err != nil {
		return nil, err
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	return new(net.Dialer).DialContext(ctx, network, address)
}

// broken is a limiter behind a dialer, with a clock that does not run by itself.
type broken struct {
	*dialer
	url   string
	pool  *pgxpool.Pool
	clock *conformance.Clock
	l     *limiter.Limiter
}

func newBroken(t *testing.T, config limiter.Config) *broken {
	t.Helper()
	url := newDatabase(t)
	b := &broken{dialer: newDialer(func() string { return url }), url: url, clock: new(conformance.Clock)}
	b.pool = connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = b.dial })
	config.Now = b.clock.Now
	if config.Timeout == 0 {
		config.Timeout = 10 * time.Second // against hanging for ever
	}
	b.l = newLimiter(t, b.pool, &config)
	return b
}

// close closes the way, also to connections that are open and idle.
func (b *broken) close() { b.down.Store(true); b.pool.Reset() }

// asks expects an error that did or did not come from an open breaker.
func (b *broken) asks(t *testing.T, open bool) error {
	t.Helper()
	before := b.dials.Load()
	_, err := b.l.Allow(t.Context(), failsClosed, "k")
	if !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "circuit breaker") != open {
		t.Errorf("got %v, want the breaker open: %v", err, open)
	}
	if dialed := b.dials.Load() > before; dialed == open {
		t.Errorf("a connection was tried: %v, the breaker open: %v", dialed, open)
	}
	return err
}

// TestBreakerOnAStoppedServer: the breaker opens, nobody touches the pool, one
// probes, and it closes once the server is back.
func TestBreakerOnAStoppedServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	own, err := throwaway.StartOwn(ctx, log.Printf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	template, err := own.Template(ctx, "stopped", migrations.Up)
	if err != nil {
		t.Fatal(err)
	}
	url := template.New(t)
	b := &broken{dialer: newDialer(own.URL), clock: new(conformance.Clock)}
	pool := connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = b.dial })
	b.l = newLimiter(t, pool, &limiter.Config{Now: b.clock.Now, BreakAfter: 3, Logger: slog.New(slog.DiscardHandler)})

	must(t)(b.l.Allow(ctx, failsClosed, "k"))
	if err := own.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	var last error
	for range 3 {
		if _, last = b.l.Allow(ctx, failsClosed, "k"); !errors.Is(last, limiter.ErrUnavailable) || strings.Contains(last.Error(), "circuit breaker") {
			t.Errorf("got %v", last)
		}
	}
	before := b.dials.Load()
	err = b.asks(t, true)
	if why := strings.TrimPrefix(last.Error(), limiter.ErrUnavailable.Error()); !strings.HasSuffix(err.Error(), why) || !strings.Contains(err.Error(), "tries again in 1s") {
		t.Errorf("got %v after %v", err, last)
	}
	if r := must(t)(b.l.AllowN(ctx, failsOpen, "k", 7)); !r.Allowed || r.Granted != 7 || r.Source != limiter.SourceDegraded {
		t.Errorf("fails open: %+v", r)
	}
	if err := b.l.Reset(ctx, failsOpen, "k"); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("Reset: got %v", err)
	}
	if _, err := b.l.AllowN(ctx, failsOpen, "k", -1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("invalid: got %v", err)
	}
	b.clock.Set(breakForUs - 1)
	b.asks(t, true)
	if dialed := b.dials.Load() - before; dialed != 0 {
		t.Errorf("%d connections were tried while the breaker was open", dialed)
	}

	b.clock.Set(breakForUs)
	b.asks(t, false) // the probe, in vain
	b.asks(t, true)

	if err := own.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	b.asks(t, true)
	b.clock.Set(2 * breakForUs)
	for range 3 {
		if r := must(t)(b.l.Allow(ctx, failsOpen, "k")); r.Source != limiter.SourceDatabase {
			t.Errorf("after the restart: %+v", r)
		}
	}
}

// TestBreakerCounts failures in a row: any answer begins anew, be it an error.
func TestBreakerCounts(t *testing.T) {
	t.Parallel()
	b := newBroken(t, limiter.Config{BreakAfter: 2})
	ctx := t.Context()
	other := connect(t, b.url)
	for _, answer := range []func(){
		func() { must(t)(b.l.Allow(ctx, failsClosed, "k")) },
		func() {
			exec(t, other, "ALTER TABLE pglimit_token_bucket RENAME TO away")
			if _, err := b.l.Allow(ctx, failsClosed, "k"); !errors.Is(err, limiter.ErrNotMigrated) {
				t.Errorf("got %v", err)
			}
			exec(t, other, "ALTER TABLE away RENAME TO pglimit_token_bucket")
		},
	} {
		b.close()
		b.asks(t, false)
		b.down.Store(false)
		answer()
	}
	b.close()
	b.asks(t, false)
	b.asks(t, false)
	b.asks(t, true)
	b.clock.Set(-1) // a clock that was set back is no reason to stay away
	b.asks(t, false)
	b.asks(t, true)
}

// TestBreakerProbes with one caller: the others do not wait for what it finds.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	b := newBroken(t, limiter.Config{BreakAfter: 1})
	ctx := t.Context()
	tx := begin(t, b.pool, pgx.TxOptions{})
	b.close()
	b.asks(t, false)
	b.asks(t, true)
	if r := must(t)(b.l.InTx(tx).Allow(ctx, failsClosed, "tx")); !r.Allowed {
		t.Errorf("a transaction asks on its own connection: %+v", r)
	}

	b.clock.Set(breakForUs)
	b.hangs.Store(true)
	b.down.Store(false)
	probe := make(chan error, 1)
	go func() {
		_, err := b.l.Allow(ctx, failsClosed, "k")
		probe <- err
	}()
	select {
	case <-b.arrived:
	case err := <-probe:
		t.Fatalf("nobody probed: %v", err)
	}
	for range 3 {
		b.asks(t, true)
	}
	b.hangs.Store(false)
	b.release <- struct{}{}
	if err := <-probe; err != nil {
		t.Errorf("the probe: %v", err)
	}
	must(t)(b.l.Allow(ctx, failsClosed, "k"))
}

// TestBreakerAndContexts: what Config.Timeout ends counts, what a caller ends
// does not.
func TestBreakerAndContexts(t *testing.T) {
	t.Parallel()
	b := newBroken(t, limiter.Config{BreakAfter: 2, Timeout: time.Millisecond})
	b.hangs.Store(true)
	for i := range 3 {
		_, err := b.l.Allow(t.Context(), failsClosed, "k")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "circuit breaker") != (i == 2) {
			t.Errorf("ask %d: got %v", i, err)
		}
	}

	b = newBroken(t, limiter.Config{BreakAfter: 1})
	b.hangs.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.l.Allow(ctx, failsOpen, "k")
		gone <- err
	}()
	<-b.arrived
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.l.Allow(late, failsOpen, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: got %v", err)
	}
	b.hangs.Store(false)
	b.release <- struct{}{}
	must(t)(b.l.Allow(t.Context(), failsClosed, "k"))
}

// TestBreakerConfig: off, the default, and a number without meaning.
func TestBreakerConfig(t *testing.T) {
	t.Parallel()
	off := newBroken(t, limiter.Config{BreakAfter: -1})
	byDefault := newBroken(t, limiter.Config{})
	off.close()
	byDefault.close()
	for i := range limiter.DefaultBreakAfter + 2 {
		off.asks(t, false)
		byDefault.asks(t, i >= limiter.DefaultBreakAfter)
	}
	if _, err := limiter.New(off.pool, &limiter.Config{BreakFor: -1}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}
