package reserve

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// settable creates two limiters with one clock, and returns a function that sets it.
func settable(t *testing.T) (l, other *limiter.Limiter, at func(time.Duration)) {
	t.Helper()
	pool, clock := testworld.NewPool(t), new(conformance.Clock)
	config := &limiter.Config{Now: clock.Now, DisableDenyCache: true, IdempotencyTTL: time.Minute}
	return testworld.NewLimiter(t, pool, config), testworld.NewLimiter(t, pool, config), func(d time.Duration) { clock.Set(1_000_000_000 + d.Microseconds()) }
}

// TestSettle: Settle and Cancel may come in every order.
func TestSettle(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, p := range testworld.Holdable() {
		p.Period = 1000 * time.Hour
		t.Run(testworld.Variant(p), func(t *testing.T) {
			at(0)
			h := testworld.Reserve(t, l, p.Request("k", 6), time.Minute)
			if got := h.ExpiresAt.Sub(h.Result.At); got != time.Minute {
				t.Errorf("expires after %v", got)
			}
			if r := testworld.Must(t)(l.AllowN(ctx, p, "k", 5)); r.Allowed {
				t.Errorf("held units passed: %+v", r)
			}
			// By another process, with less than reserved; again; again with another
			// number.
			if r := testworld.Must(t)(other.Settle(ctx, h.ID, 4)); !r.Allowed || r.Granted != 4 || !testworld.Near(r.Level, 4) || r.Replayed || r.Expired {
				t.Errorf("settled below: %+v", r)
			}
			if r := testworld.Must(t)(l.Settle(ctx, h.ID, 4)); !r.Replayed || !testworld.Near(r.Level, 4) {
				t.Errorf("settled again: %+v", r)
			}
			if _, err := l.Settle(ctx, h.ID, 5); !errors.Is(err, limiter.ErrReservationEnded) {
				t.Errorf("settled with another amount: %v", err)
			}
			if err := l.Cancel(ctx, h.ID); !errors.Is(err, limiter.ErrReservationEnded) {
				t.Errorf("cancelled after the settle: %v", err)
			}
			// Above the reservation and above the burst: recorded, and nothing is left.
			h = testworld.Reserve(t, l, p.Request("k", 6), time.Minute)
			if r := testworld.Must(t)(l.Settle(ctx, h.ID, 60)); !testworld.Near(r.Level, 64) || r.Remaining != 0 || !r.Full {
				t.Errorf("settled above: %+v", r)
			}
			if r := testworld.Must(t)(l.Allow(ctx, p, "k")); r.Allowed || !testworld.Near(r.Level, 64) {
				t.Errorf("after the overdraft: %+v", r)
			}
			// Cancelled, twice, and settled afterwards.
			h = testworld.Reserve(t, l, p.Request("c", 6), time.Minute)
			for range 2 {
				if err := other.Cancel(ctx, h.ID); err != nil {
					t.Errorf("cancel: %v", err)
				}
			}
			if _, err := l.Settle(ctx, h.ID, 6); !errors.Is(err, limiter.ErrReservationEnded) || !testworld.Near(testworld.Level(t, l, p, "c"), 0) {
				t.Errorf("settled after the cancel: %v", err)
			}
			settleLate(t, l, other, p, at)
		})
	}
}

// settleLate: what ends a reservation after it has expired, or after a reset, counts once.
func settleLate(t *testing.T, l, other *limiter.Limiter, p limiter.Policy, at func(time.Duration)) {
	t.Helper()
	ctx := context.Background()
	// Expired before its owner settles: a denied request of any caller gives it
	// back. The owner's settle is still recorded, and reports that it was late.
	h := testworld.Reserve(t, l, p.Request("e", 8), 10*time.Second)
	at(9 * time.Second)
	if r := testworld.Must(t)(other.AllowN(ctx, p, "e", 5)); r.Allowed {
		t.Errorf("before the hold expired: %+v", r)
	}
	at(10 * time.Second)
	if r := testworld.Must(t)(other.AllowN(ctx, p, "e", 5)); !r.Allowed || !testworld.Near(r.Level, 5) {
		t.Errorf("once the hold has expired: %+v", r)
	}
	if r := testworld.Must(t)(l.Settle(ctx, h.ID, 7)); !r.Expired || !testworld.Near(r.Level, 12) {
		t.Errorf("settled after expiry: %+v", r)
	}
	// Late, but no request came in between: it still counts, and only the rest
	// comes back.
	h = testworld.Reserve(t, l, p.Request("l", 8), time.Second)
	at(20 * time.Second)
	if r := testworld.Must(t)(l.Settle(ctx, h.ID, 3)); !r.Expired || !testworld.Near(r.Level, 3) {
		t.Errorf("settled late: %+v", r)
	}
	// After a reset nothing of it is counted, so nothing comes back.
	h = testworld.Reserve(t, l, p.Request("r", 8), time.Minute)
	must.Succeed(t, l.Reset(ctx, p, "r"))
	testworld.Must(t)(l.AllowN(ctx, p, "r", 5))
	if err := l.Cancel(ctx, h.ID); err != nil || !testworld.Near(testworld.Level(t, l, p, "r"), 5) {
		t.Errorf("cancelled after a reset: %v, level %v", err, testworld.Level(t, l, p, "r"))
	}
}
