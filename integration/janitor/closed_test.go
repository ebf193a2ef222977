package janitor

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/janitor"
)

// complaints is a slog handler that fails the test on warnings and errors.
type complaints struct {
	slog.Handler
	t *testing.T
}

func (c complaints) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

func (c complaints) Handle(_ context.Context, r slog.Record) error {
	c.t.Errorf("logged %v: %s", r.Level, r.Message)
	return nil
}

// TestJanitorOfAClosedPool: Run ends without a warning if its pool was closed before, and
// its lease ends by itself. If the program waits for Run, the lease is free at once.
func TestJanitorOfAClosedPool(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"the pool is closed first": false, "Run ends first": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := bed.NewDatabase(t)
			own, watch := bed.Connect(t, address), bed.Connect(t, address)
			clock := newHandClock()
			swept := make(chan janitor.Removed, 1)
			stop := start(t, bed.NewJanitor(t, own, &janitor.Config{
				Interval: 24 * time.Hour, Lease: lease, Now: clock.now,
				Logger:  slog.New(complaints{slog.DiscardHandler, t}),
				OnSweep: func(r janitor.Removed) { swept <- r },
			}))
			if r := bed.Receive(t, swept, "the sweep"); r.HeldElsewhere {
				t.Fatal("it did not get the lease")
			}
			if waits {
				stop() // waits
			}
			own.Close()
			stop()
			bed.InsertRows(t, watch, "pglimit_gcra", "p", 1, 0)
			other := bed.NewJanitor(t, watch, &janitor.Config{Lease: lease, Now: clock.now})
			if !waits {
				heldElsewhere(t, other)
				clock.add(lease)
			}
			sweep(t, other, map[string]int64{"pglimit_gcra": 1})
		})
	}
}
