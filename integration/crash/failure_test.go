package crash

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

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
