package reserve

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// settable creates a limiter whose clock the test sets.
func settable(t *testing.T) (l, other *limiter.Limiter, at func(time.Duration)) {
	t.Helper()
	return bed.SettableOn(t, bed.NewPool(t))
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
