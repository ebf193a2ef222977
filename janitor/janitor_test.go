package janitor

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/must"
)

// idlePool is a pool that never connects.
func idlePool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := must.OK(pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none"))(t)
	t.Cleanup(pool.Close)
	return pool
}

// TestJanitorRunOnce checks that a second concurrent Run fails, and that Run goes on
// without a database and returns nil.
func TestJanitorRunOnce(t *testing.T) {
	t.Parallel()
	swept := make(chan Removed, 1)
	j := must.OK(New(idlePool(t), &Config{
		Interval: time.Hour, Logger: slog.New(slog.DiscardHandler),
		OnSweep: func(r Removed) { swept <- r },
	}))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- j.Run(ctx) }()
	if r := <-swept; r.Total() != 0 || r.HeldElsewhere {
		t.Errorf("a sweep without a database removed %+v", r)
	}
	if err := j.Run(ctx); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("second Run: got %v, want an error", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if got := j.Removed(); got.Total() != 0 {
		t.Errorf("removed %+v in all", got)
	}
}

func TestJanitorSweepEndedContext(t *testing.T) {
	t.Parallel()
	j := must.OK(New(idlePool(t), nil))(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := j.Sweep(ctx); err == nil || !strings.HasPrefix(err.Error(), "pglimit: ") {
		t.Errorf("got %v", err)
	}
}

func TestJitter(t *testing.T) {
	t.Parallel()
	const d = time.Minute
	least, most := d, d
	for range 10_000 {
		got := jitter(d)
		least, most = min(least, got), max(most, got)
	}
	if least < d*9/10 || most > d*11/10 {
		t.Errorf("jitter is from %v to %v, want at most a tenth around %v", least, most, d)
	}
	if least > d*91/100 || most < d*109/100 {
		t.Errorf("jitter is from %v to %v only", least, most)
	}
}
