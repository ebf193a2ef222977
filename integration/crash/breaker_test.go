package crash

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

const breakForUs = int64(time.Second / time.Microsecond)

// TestBreakerOnAStoppedServer: a policy fails closed or open as configured, and invalid
// input stays invalid. The breaker opens, no request touches the pool, one probes, and the
// breaker closes once the server is back, with what was counted.
func TestBreakerOnAStoppedServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	own := testworld.OwnServer(t)
	template, err := own.Template(ctx, "stopped", migrations.Up)
	if err != nil {
		t.Fatal(err)
	}
	url := template.New(t)
	b := &testworld.Broken{Dialer: testworld.NewDialer(own.URL), Clock: new(conformance.Clock)}
	pool := testworld.Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = b.Dial })
	var logged testworld.Buffer
	var observed limiter.Source
	b.L = testworld.NewLimiter(t, pool, &limiter.Config{
		Now: b.Clock.Now, BreakAfter: 3, Logger: slog.New(slog.NewTextHandler(&logged, nil)),
		Observe: func(_ context.Context, o limiter.Observation) { observed = o.Result.Source },
	})

	testworld.Must(t)(b.L.Allow(ctx, testworld.FailsClosed, "k"))
	must.Succeed(t, own.Stop(ctx))
	if r := testworld.Must(t)(b.L.Allow(ctx, testworld.FailsOpen, "k")); !r.Allowed || observed != limiter.SourceDegraded || logged.Count("fails open") != 1 {
		t.Errorf("fails open: %+v, observed %s, logged %q", r, observed, logged.String())
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := b.L.Allow(gone, testworld.FailsOpen, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller failed open: %v", err)
	}
	var last error
	for range 2 {
		if _, last = b.L.Allow(ctx, testworld.FailsClosed, "k"); !errors.Is(last, limiter.ErrUnavailable) || strings.Contains(last.Error(), "circuit breaker") {
			t.Errorf("got %v", last)
		}
	}
	before := b.Dials.Load()
	err = b.ExpectUnavailable(t, true)
	if why := strings.TrimPrefix(last.Error(), limiter.ErrUnavailable.Error()); !strings.HasSuffix(err.Error(), why) || !strings.Contains(err.Error(), "tries again in 1s") {
		t.Errorf("got %v after %v", err, last)
	}
	if r := testworld.Must(t)(b.L.AllowN(ctx, testworld.FailsOpen, "k", 7)); !r.Allowed || r.Granted != 7 || r.Source != limiter.SourceDegraded {
		t.Errorf("fails open: %+v", r)
	}
	if err := b.L.Reset(ctx, testworld.FailsOpen, "k"); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("Reset: got %v", err)
	}
	if _, err := b.L.AllowN(ctx, testworld.FailsOpen, "k", -1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("invalid: got %v", err)
	}
	b.Clock.Set(breakForUs - 1)
	b.ExpectUnavailable(t, true)
	if dialed := b.Dials.Load() - before; dialed != 0 {
		t.Errorf("%d connections were tried while the breaker was open", dialed)
	}

	b.Clock.Set(breakForUs)
	b.ExpectUnavailable(t, false) // the probe, which fails
	b.ExpectUnavailable(t, true)

	must.Succeed(t, own.Restart(ctx))
	b.ExpectUnavailable(t, true)
	b.Clock.Set(2 * breakForUs)
	for range 3 {
		if r := testworld.Must(t)(b.L.Allow(ctx, testworld.FailsOpen, "k")); r.Source != limiter.SourceDatabase {
			t.Errorf("after the restart: %+v", r)
		}
	}
	if level := testworld.Level(t, b.L, testworld.FailsClosed, "k"); !testworld.Near(level, 1) {
		t.Errorf("after the restart %v units count", level)
	}
}

// TestBreakerProbes: one caller probes, and the others do not wait for its result.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	b := testworld.NewBroken(t, limiter.Config{BreakAfter: 1})
	ctx := t.Context()
	tx := testworld.Begin(t, b.Pool, pgx.TxOptions{})
	b.Cut()
	b.ExpectUnavailable(t, false)
	b.ExpectUnavailable(t, true)
	if r := testworld.Must(t)(b.L.InTx(tx).Allow(ctx, testworld.FailsClosed, "tx")); !r.Allowed {
		t.Errorf("a transaction uses its own connection: %+v", r)
	}

	b.Clock.Set(breakForUs)
	b.Hangs.Store(true)
	b.Down.Store(false)
	probe := make(chan error, 1)
	go func() {
		_, err := b.L.Allow(ctx, testworld.FailsClosed, "k")
		probe <- err
	}()
	select {
	case <-b.Arrived:
	case err := <-probe:
		t.Fatalf("no request probed: %v", err)
	}
	for range 3 {
		b.ExpectUnavailable(t, true)
	}
	b.Hangs.Store(false)
	b.Release <- struct{}{}
	if err := <-probe; err != nil {
		t.Errorf("the probe: %v", err)
	}
	testworld.Must(t)(b.L.Allow(ctx, testworld.FailsClosed, "k"))
}

// TestBreakerAndContexts: a request that Config.Timeout ends counts; one that its caller
// ends does not.
func TestBreakerAndContexts(t *testing.T) {
	t.Parallel()
	b := testworld.NewBroken(t, limiter.Config{BreakAfter: 2, Timeout: 100 * time.Millisecond})
	b.Hangs.Store(true)
	for i := range 3 {
		_, err := b.L.Allow(t.Context(), testworld.FailsClosed, "k")
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "circuit breaker") != (i == 2) {
			t.Errorf("request %d: got %v", i, err)
		}
	}

	b = testworld.NewBroken(t, limiter.Config{BreakAfter: 1})
	b.Hangs.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.L.Allow(ctx, testworld.FailsOpen, "k")
		gone <- err
	}()
	<-b.Arrived
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := b.L.Allow(late, testworld.FailsOpen, "k"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: got %v", err)
	}
	b.Hangs.Store(false)
	b.Release <- struct{}{}
	testworld.Must(t)(b.L.Allow(t.Context(), testworld.FailsClosed, "k"))
}

// TestBreakerConfig: disabled, and the default.
func TestBreakerConfig(t *testing.T) {
	t.Parallel()
	off := testworld.NewBroken(t, limiter.Config{DisableBreaker: true})
	byDefault := testworld.NewBroken(t, limiter.Config{})
	off.Cut()
	byDefault.Cut()
	for i := range 10 + 2 {
		off.ExpectUnavailable(t, false)
		byDefault.ExpectUnavailable(t, i >= 10)
	}
}
