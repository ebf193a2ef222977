package crash

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

// TestOutageOfAStoppedServer: while the server is stopped a policy fails closed or open as
// configured, and invalid input stays invalid. With the server back all works again.
func TestOutageOfAStoppedServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	own, err := pglimittest.StartOwn(ctx, log.Printf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := own.Close(); err != nil {
			t.Error(err)
		}
	})
	open := limiter.Policy{Name: "open", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	closed := limiter.Policy{Name: "closed", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}

	var logged bed.Buffer
	var observed []limiter.Source
	var mu sync.Mutex
	config := &limiter.Config{
		Timeout: 5 * time.Second,
		Logger:  slog.New(slog.NewTextHandler(&logged, nil)),
		Observe: func(_ context.Context, o limiter.Observation) {
			mu.Lock()
			defer mu.Unlock()
			observed = append(observed, o.Result.Source)
		},
	}
	start := func() *limiter.Limiter {
		pool, err := pgxpool.New(ctx, own.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if err := migrations.Up(ctx, pool); err != nil {
			t.Fatal(err)
		}
		return bed.NewLimiter(t, pool, config)
	}
	l := start()
	bed.Must(t)(l.AllowN(ctx, open, "k", 3))
	bed.Must(t)(l.AllowN(ctx, closed, "k", 3))

	if err := own.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if r := bed.Must(t)(l.AllowN(ctx, open, "k", 9)); !r.Allowed || r.Source != limiter.SourceDegraded || r.Granted != 9 {
		t.Errorf("fail open: %+v", r)
	}
	if n := len(observed); observed[n-1] != limiter.SourceDegraded {
		t.Errorf("observed %v", observed)
	}
	if !strings.Contains(logged.String(), "fails open") {
		t.Errorf("logged %q", logged.String())
	}
	if r, err := l.Allow(ctx, closed, "k"); !errors.Is(err, limiter.ErrUnavailable) || r.Allowed {
		t.Errorf("fail closed: %+v, %v", r, err)
	}
	if _, err := l.AllowN(ctx, open, "k", -1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("invalid input failed open: %v", err)
	}
	if _, err := l.AllowN(ctx, open, "", 1); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("invalid input failed open: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := l.Allow(gone, open, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller failed open: %v", err)
	}
	if err := l.Reset(ctx, open, "k"); !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("Reset: got %v", err)
	}

	if err := own.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	l = start() // a container's port changes
	if r := bed.Must(t)(l.Check(ctx, closed, "k", 0)); !bed.Near(r.Level, 3) {
		t.Errorf("after the restart: %+v", r)
	}
}

// TestOutageTimeoutHolds: while a transaction has locked the row, requests return within
// Config.Timeout, with an error: that is no outage. The caller's own deadline keeps its own error.
func TestOutageTimeoutHolds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, &limiter.Config{Timeout: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	p := limiter.Policy{Name: "held", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: time.Hour}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	bed.Must(t)(l.InTx(tx).Allow(ctx, p, "k")) // and keeps it until all requests below have returned

	_, err = l.Allow(ctx, p, "k")
	if !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Timeout is 50ms") {
		t.Errorf("closed: got %v", err)
	}
	p.OnError = limiter.FailOpen
	open := bed.NewLimiter(t, pool, &limiter.Config{Timeout: 5 * time.Second}) // the server answers in that time, on a busy machine too
	if r, err := open.Allow(ctx, p, "k"); !errors.Is(err, limiter.ErrLocked) || r.Allowed {
		t.Errorf("a locked row passed FailOpen: %+v, %v", r, err)
	}
	unbounded := bed.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true})
	own, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := unbounded.Allow(own, p, "k"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("the caller's deadline: got %v", err)
	}
}

// TestNotMigrated names the command to run.
func TestNotMigrated(t *testing.T) {
	t.Parallel()
	l := bed.NewLimiter(t, bed.Connect(t, bed.EmptyDatabase(t)), nil)
	for _, p := range bed.Variants(1, time.Hour) {
		_, err := l.Allow(context.Background(), p, "k")
		if !errors.Is(err, limiter.ErrNotMigrated) || !strings.Contains(err.Error(), "pglimit migrate up") {
			t.Errorf("%s: got %v", bed.Variant(p), err)
		}
	}
}

// TestKeyThatTheDatabaseCannotHold: a key that the database's encoding cannot represent is
// invalid, and does not pass through FailOpen.
func TestKeyThatTheDatabaseCannotHold(t *testing.T) {
	t.Parallel()
	l := bed.NewLimiter(t, bed.Latin1(t), nil)
	for _, p := range bed.Variants(1, time.Hour) {
		p.OnError = limiter.FailOpen
		if r, err := l.Allow(t.Context(), p, "漢字"); !errors.Is(err, limiter.ErrInvalid) || r.Allowed {
			t.Errorf("%s: %+v, %v", bed.Variant(p), r, err)
		}
		if r := bed.Must(t)(l.Allow(t.Context(), p, "é")); !r.Allowed {
			t.Errorf("%s: %+v", bed.Variant(p), r)
		}
	}
}

// TestCloseEndsALimiter: Close ends a limiter and can be called again.
func TestCloseEndsALimiter(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	tx := l.InTx(nil)
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour, OnError: limiter.FailOpen}
	_, err := l.Allow(context.Background(), p, "k")
	_, txErr := tx.Allow(context.Background(), p, "k")
	if !errors.Is(err, limiter.ErrClosed) || !errors.Is(txErr, limiter.ErrClosed) {
		t.Errorf("got %v and %v", err, txErr)
	}
}

// TestKeySecret keeps keys out of the database.
func TestKeySecret(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Hour}
	l := bed.NewLimiter(t, pool, &limiter.Config{KeySecret: []byte("one secret for the keys")})
	bed.Must(t)(l.Allow(ctx, p, "person@example.org"))
	if r := bed.Must(t)(l.Allow(ctx, p, "person@example.org")); r.Allowed {
		t.Error("the same key was not the same")
	}
	other := bed.NewLimiter(t, pool, &limiter.Config{KeySecret: []byte("another secret for the keys")})
	if r := bed.Must(t)(other.Allow(ctx, p, "person@example.org")); !r.Allowed {
		t.Error("another secret did not start from zero")
	}
	var stored string
	if err := pool.QueryRow(ctx, "SELECT string_agg(key, ' ') FROM pglimit_token_bucket").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored, "person") || len(stored) != 2*43+1 {
		t.Errorf("stored %q", stored)
	}
}
