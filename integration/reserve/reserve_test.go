package reserve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// settable creates a limiter whose clock the test sets.
func settable(t *testing.T) (l, other *limiter.Limiter, at func(time.Duration)) {
	t.Helper()
	return bed.SettableOn(t, bed.NewPool(t))
}

// TestReserveNoUnitPassesTwice: units of a reservation that have leaked, or left the
// window, are not also given back.
func TestReserveNoUnitPassesTwice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, p := range bed.Holdable() {
		at(0)
		h := bed.Reserve(t, l, p.Request("k", 10), time.Hour)
		at(10 * time.Second)
		if r := bed.Must(t)(l.AllowN(ctx, p, "k", 10)); !r.Allowed && p.Algorithm != limiter.SlidingWindowCounter {
			t.Fatalf("%s: 10 more after 10 s: %+v", bed.Variant(p), r)
		}
		before := bed.Level(t, l, p, "k")
		if err := other.Cancel(ctx, h.ID); err != nil {
			t.Fatal(err)
		}
		left := bed.Level(t, l, p, "k")
		if p.Algorithm == limiter.SlidingWindowCounter {
			if before < 10 || left != before-10 { // the reservation counts in the previous window
				t.Errorf("%s: level %v before, %v after the cancel", bed.Variant(p), before, left)
			}
			continue
		}
		if left != 10 {
			t.Errorf("%s: level %v after the cancel: units can pass twice", bed.Variant(p), left)
		}
	}
}

// TestSettleEarlyGivesBackWhatCannotHaveLeaked, and no more: 3 s after 10 were reserved at
// 1 a second, at most 7 come back.
func TestSettleEarlyGivesBackWhatCannotHaveLeaked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, _, at := settable(t)
	p := limiter.Policy{Name: "early", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Second, Burst: 20}
	for spent, left := range map[float64]float64{0: 7 + 5 - 7, 2: 7 + 5 - 7, 5: 7 + 5 - 5, 10: 7 + 5, 12: 7 + 5 + 2} {
		key := fmt.Sprint(spent)
		at(0)
		h := bed.Reserve(t, l, p.Request(key, 10), time.Hour)
		at(3 * time.Second)
		bed.Must(t)(l.AllowN(ctx, p, key, 5))
		r := bed.Must(t)(l.Settle(ctx, h.ID, spent))
		if r.Granted != spent || !bed.Near(r.Level, left) || !bed.Near(bed.Level(t, l, p, key), left) {
			t.Errorf("settled with %v: %+v, want a level of %v", spent, r, left)
		}
	}
}

// TestReserveInALogGivesBackItsOwnEntry: removing the newest entries instead would leave
// room for them again when the reservation's own entry leaves the window.
func TestReserveInALogGivesBackItsOwnEntry(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, _, at := settable(t)
	p := limiter.Policy{Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: 20, Period: time.Minute}
	at(0)
	h := bed.Reserve(t, l, p.Request("k", 10), time.Hour)
	at(59 * time.Second)
	bed.Must(t)(l.AllowN(ctx, p, "k", 10))
	if err := l.Cancel(ctx, h.ID); err != nil {
		t.Fatal(err)
	}
	at(60 * time.Second)
	if r := bed.Must(t)(l.AllowN(ctx, p, "k", 11)); r.Allowed {
		t.Errorf("21 passed within 2 s: %+v", r)
	}
}

// TestSettle in every order.
func TestSettle(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, p := range bed.Holdable() {
		p.Period = 1000 * time.Hour
		t.Run(bed.Variant(p), func(t *testing.T) {
			at(0)
			h := bed.Reserve(t, l, p.Request("k", 6), time.Minute)
			if got := h.Expires.Sub(h.Result.At); got != time.Minute {
				t.Errorf("expires after %v", got)
			}
			if r := bed.Must(t)(l.AllowN(ctx, p, "k", 5)); r.Allowed {
				t.Errorf("held units passed: %+v", r)
			}
			// By another process, with less than reserved; again; again with another
			// number.
			if r := bed.Must(t)(other.Settle(ctx, h.ID, 4)); !r.Allowed || r.Granted != 4 || !bed.Near(r.Level, 4) || r.Replayed || r.Expired {
				t.Errorf("settled below: %+v", r)
			}
			if r := bed.Must(t)(l.Settle(ctx, h.ID, 4)); !r.Replayed || !bed.Near(r.Level, 4) {
				t.Errorf("settled again: %+v", r)
			}
			if _, err := l.Settle(ctx, h.ID, 5); !errors.Is(err, limiter.ErrReservationEnded) {
				t.Errorf("settled with another amount: %v", err)
			}
			if err := l.Cancel(ctx, h.ID); !errors.Is(err, limiter.ErrReservationEnded) {
				t.Errorf("cancelled after the settle: %v", err)
			}
			// Above the reservation and above the burst: recorded, and nothing is left.
			h = bed.Reserve(t, l, p.Request("k", 6), time.Minute)
			if r := bed.Must(t)(l.Settle(ctx, h.ID, 60)); !bed.Near(r.Level, 64) || r.Remaining != 0 || !r.Full {
				t.Errorf("settled above: %+v", r)
			}
			if r := bed.Must(t)(l.Allow(ctx, p, "k")); r.Allowed || !bed.Near(r.Level, 64) {
				t.Errorf("after the overdraft: %+v", r)
			}
			// Cancelled, twice, and settled afterwards.
			h = bed.Reserve(t, l, p.Request("c", 6), time.Minute)
			for range 2 {
				if err := other.Cancel(ctx, h.ID); err != nil {
					t.Errorf("cancel: %v", err)
				}
			}
			if _, err := l.Settle(ctx, h.ID, 6); !errors.Is(err, limiter.ErrReservationEnded) || !bed.Near(bed.Level(t, l, p, "c"), 0) {
				t.Errorf("settled after the cancel: %v", err)
			}
			// Expired before its owner settles: a denied request of any caller gives it
			// back. The owner's settle is still recorded, and reports that it was late.
			h = bed.Reserve(t, l, p.Request("e", 8), 10*time.Second)
			at(9 * time.Second)
			if r := bed.Must(t)(other.AllowN(ctx, p, "e", 5)); r.Allowed {
				t.Errorf("before the hold expired: %+v", r)
			}
			at(10 * time.Second)
			if r := bed.Must(t)(other.AllowN(ctx, p, "e", 5)); !r.Allowed || !bed.Near(r.Level, 5) {
				t.Errorf("once the hold has expired: %+v", r)
			}
			if r := bed.Must(t)(l.Settle(ctx, h.ID, 7)); !r.Expired || !bed.Near(r.Level, 12) {
				t.Errorf("settled after expiry: %+v", r)
			}
			// Late, but no request came in between: it still counts, and only the rest
			// comes back.
			h = bed.Reserve(t, l, p.Request("l", 8), time.Second)
			at(20 * time.Second)
			if r := bed.Must(t)(l.Settle(ctx, h.ID, 3)); !r.Expired || !bed.Near(r.Level, 3) {
				t.Errorf("settled late: %+v", r)
			}
			// After a reset nothing of it is counted, so nothing comes back.
			h = bed.Reserve(t, l, p.Request("r", 8), time.Minute)
			if err := l.Reset(ctx, p, "r"); err != nil {
				t.Fatal(err)
			}
			bed.Must(t)(l.AllowN(ctx, p, "r", 5))
			if err := l.Cancel(ctx, h.ID); err != nil || !bed.Near(bed.Level(t, l, p, "r"), 5) {
				t.Errorf("cancelled after a reset: %v, level %v", err, bed.Level(t, l, p, "r"))
			}
		})
	}
}

// TestIdempotencyKeyCountsOnce, whichever of many concurrent requests is first, in a
// transaction or not.
func TestIdempotencyKeyCountsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	url := bed.NewDatabase(t)
	pool := bed.Connect(t, url, func(c *pgxpool.Config) { c.MaxConns = 32 })
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true})
	for _, p := range bed.Variants(1000, 1000*time.Hour) {
		t.Run(bed.Variant(p), func(t *testing.T) {
			for round := range 4 {
				request := p.Request("k", 7)
				request.IdempotencyKey = fmt.Sprintf("order %d", round)
				var replayed, fresh int
				var mu sync.Mutex
				var wg sync.WaitGroup
				for i := range 24 {
					wg.Go(func() {
						var res limiter.Result
						var err error
						if i%2 == 0 {
							res, err = l.Do(ctx, request)
						} else {
							err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
								res, err = l.InTx(tx).Do(ctx, request)
								return err
							})
						}
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err != nil || !res.Allowed || res.Granted != 7:
							t.Errorf("%+v, %v", res, err)
						case res.Replayed:
							replayed++
						default:
							fresh++
						}
					})
				}
				wg.Wait()
				if fresh != 1 || replayed != 23 || !bed.Near(bed.Level(t, l, p, "k"), 7*float64(round+1)) {
					t.Fatalf("%d admitted, %d replayed, level %v", fresh, replayed, bed.Level(t, l, p, "k"))
				}
			}
		})
	}
}

// TestIdempotencyKeyRemembersAdmissions, not denials, for its configured time, and only
// for an equal request.
func TestIdempotencyKeyRemembersAdmissions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, p := range bed.Variants(10, 1000*time.Hour) {
		at(0)
		bed.Must(t)(l.AllowN(ctx, p, "k", 8))
		request := p.Request("k", 5)
		request.IdempotencyKey = "order 1"
		if r := bed.Must(t)(l.Do(ctx, request)); r.Allowed || r.Replayed {
			t.Errorf("%s: %+v", bed.Variant(p), r)
		}
		if err := l.Reset(ctx, p, "k"); err != nil {
			t.Fatal(err)
		}
		first := bed.Must(t)(l.Do(ctx, request)) // a denial is not remembered
		bed.Must(t)(l.AllowN(ctx, p, "k", 5))
		at(30 * time.Second)
		again := bed.Must(t)(other.Do(ctx, request))
		first.Replayed = true
		if !first.Allowed || bed.Told(again) != bed.Told(first) {
			t.Errorf("%s: first %+v\nagain %+v", bed.Variant(p), first, again)
		}
		smaller := request
		smaller.Policy.Limit, smaller.Policy.Burst = 4, 0 // an admission is, under any plan
		if r := bed.Must(t)(other.Do(ctx, smaller)); !r.Allowed || !r.Replayed {
			t.Errorf("%s: under a smaller plan: %+v", bed.Variant(p), r)
		}
		request.Cost = 6
		if _, err := l.Do(ctx, request); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%s: another cost: %v", bed.Variant(p), err)
		}
		if _, err := l.Reserve(ctx, request, time.Second); !errors.Is(err, limiter.ErrInvalid) && !errors.Is(err, limiter.ErrUnsupported) {
			t.Errorf("%s: another verb: %v", bed.Variant(p), err)
		}
		request.Cost = 5
		at(61 * time.Second) // forgotten, and denied now
		if r := bed.Must(t)(l.Do(ctx, request)); r.Replayed || r.Allowed {
			t.Errorf("%s: after it was forgotten: %+v", bed.Variant(p), r)
		}
	}
}

// TestReserveIdempotently returns the same reservation again.
func TestReserveIdempotently(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l, other, at := settable(t)
	for _, p := range bed.Holdable() {
		at(0)
		request := p.Request("k", 5)
		request.IdempotencyKey = "stream 1"
		first := bed.Reserve(t, l, request, time.Second)
		again, err := other.Reserve(ctx, request, time.Second)
		first.Result.Replayed = true
		if err != nil || again.ID != first.ID || !again.Expires.Equal(first.Expires) || again.Result != first.Result {
			t.Errorf("%s: first %+v\nagain %+v, %v", bed.Variant(p), first, again, err)
		}
		at(70 * time.Second) // an open reservation that is to be forgotten comes first
		if next := bed.Reserve(t, l, request, time.Second); next.ID == first.ID || next.Result.Replayed || !bed.Near(bed.Level(t, l, p, "k"), 5) {
			t.Errorf("%s: %+v", bed.Variant(p), next)
		}
	}
}
