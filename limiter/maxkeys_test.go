package limiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestMaxKeysOfKeysInUse: a new key is denied by ErrOverloaded, FailOpen or not, while
// each key has units, a block or a reservation. Reads and known keys are answered. Each
// key that becomes idle makes room for one.
func TestMaxKeysOfKeysInUse(t *testing.T) {
	t.Parallel()
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now, MaxKeys: 3})
	ctx, p := context.Background(), Policy{Name: "p", Algorithm: TokenBucket, Limit: 5, Period: 5 * time.Second, OnError: FailOpen}
	full := func(when string) {
		t.Helper()
		r, err := l.Allow(ctx, p, "new")
		if !errors.Is(err, ErrOverloaded) || r.Allowed || r.Reason != ReasonOverload || !strings.Contains(err.Error(), "all of its 3 keys are in use: raise Config.MaxKeys") {
			t.Errorf("%s: %+v, %v", when, r, err)
		}
		all, err := l.AllowAll(ctx, p.Request("used", 1), p.Request("new", 1))
		if !errors.Is(err, ErrOverloaded) || all.Allowed {
			t.Errorf("%s: %+v, %v", when, all, err)
		}
		_, charge := l.Charge(ctx, p, "new", 1)
		_, reserve := l.Reserve(ctx, p.Request("new", 1), time.Hour)
		for _, err := range []error{charge, reserve, l.Block(ctx, p, "new", time.Hour)} {
			if !errors.Is(err, ErrOverloaded) {
				t.Errorf("%s: %v", when, err)
			}
		}
		if r, err := l.Check(ctx, p, "new", 1); err != nil || !r.Allowed || r.Source != SourceMemory {
			t.Errorf("%s: read: %+v, %v", when, r, err)
		}
	}
	fits := func(when, key string) {
		t.Helper()
		if r, err := l.Allow(ctx, p, key); err != nil || !r.Allowed {
			t.Errorf("%s: %s: %+v, %v", when, key, r, err)
		}
	}
	reserved, err := l.Reserve(ctx, p.Request("reserved", 1), time.Hour)
	if err != nil || l.Block(ctx, p, "blocked", time.Hour) != nil {
		t.Fatal(err)
	}
	advance(time.Second) // the reserved unit has leaked
	fits("at first", "used")
	full("one unit in use")
	fits("a known key", "used")
	advance(2*time.Second - time.Microsecond)
	full("a microsecond before it is idle")
	advance(time.Microsecond)
	fits("idle", "next")
	full("again")
	must.Succeed(t, l.Unblock(ctx, p, "blocked"))
	fits("unblocked", "after the block")
	full("again")
	must.Succeed(t, l.Cancel(ctx, reserved.ID))
	fits("cancelled", "after the reservation")
	full("again")
	must.Succeed(t, l.Reset(ctx, p, "next"))
	fits("reset", "after the reset")
	full("again")
	advance(time.Hour)
	for i := range 3 {
		fits("all idle", fmt.Sprint(i))
	}
	full("again")
}

// TestMaxKeysOfReservations: reservations and remembered admissions are bounded, too.
func TestMaxKeysOfReservations(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now, MaxKeys: 2, IdempotencyTTL: time.Minute})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1e6, Period: time.Second, OnError: FailOpen}
	order := func(id string) (Result, error) {
		in := p.Request("k", 1)
		in.IdempotencyKey = id
		return l.Do(ctx, in)
	}
	must.OK(order("a"))(t)
	must.OK(l.Reserve(ctx, p.Request("k", 1), time.Second))(t)
	if r, err := order("b"); !errors.Is(err, ErrOverloaded) || r.Allowed || !strings.Contains(err.Error(), "2 reservations and admissions") {
		t.Errorf("a third: %+v, %v", r, err)
	}
	if _, err := l.Reserve(ctx, p.Request("k", 1), time.Second); !errors.Is(err, ErrOverloaded) {
		t.Errorf("a third reservation: %v", err)
	}
	if r, err := order("a"); err != nil || !r.Replayed {
		t.Errorf("the first again: %+v, %v", r, err)
	}
	advance(time.Minute)
	if r, err := order("b"); err != nil || !r.Allowed {
		t.Errorf("after the first was forgotten: %+v, %v", r, err)
	}
}

// TestMaxKeysResetKeepsReservations: a key that was Reset while it has a reservation
// keeps its place, so that Settle counts what was spent even if there is no room.
func TestMaxKeysResetKeepsReservations(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now, MaxKeys: 2})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 5, Period: time.Hour}
	reserved, err := l.Reserve(ctx, p.Request("k", 2), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(ctx, p, "other"); err != nil || l.Reset(ctx, p, "k") != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(ctx, p, "new"); !errors.Is(err, ErrOverloaded) {
		t.Errorf("the place was given away: %v", err)
	}
	if r, err := l.Settle(ctx, reserved.ID, 3); err != nil || r.Level != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	// An expired reservation does not keep the place. If it is settled late and there is
	// no room, nothing is changed.
	must.Succeed(t, l.Reset(ctx, p, "k"))
	if reserved, err = l.Reserve(ctx, p.Request("k", 2), time.Second); err != nil || l.Reset(ctx, p, "k") != nil {
		t.Fatal(err)
	}
	advance(time.Minute)
	if _, err := l.Allow(ctx, p, "new"); err != nil {
		t.Errorf("an expired reservation keeps the place: %v", err)
	}
	if _, err := l.Settle(ctx, reserved.ID, 3); !errors.Is(err, ErrOverloaded) {
		t.Errorf("settled without a place: %v", err)
	}
	must.Succeed(t, l.Reset(ctx, p, "new"))
	if r, err := l.Settle(ctx, reserved.ID, 3); err != nil || r.Level != 3 || r.Replayed {
		t.Errorf("again: %+v, %v", r, err)
	}
}

// TestMaxKeysConcurrent: however callers interleave, there are never more keys, and no
// place is lost.
func TestMaxKeysConcurrent(t *testing.T) {
	t.Parallel()
	var us atomic.Int64
	us.Store(1e15)
	const most = 50
	m := memory.NewBounded(most)
	l := newInMemory(m, &Config{Now: func() time.Time { return time.UnixMicro(us.Load()) }})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 1, Period: time.Millisecond}
	ctx := context.Background()
	var overloaded, allowed atomic.Int64
	count := func(err error) {
		switch {
		case err == nil:
			allowed.Add(1)
		case errors.Is(err, ErrOverloaded):
			overloaded.Add(1)
		default:
			t.Error(err)
		}
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				us.Add(7)
				key := fmt.Sprint((g*31 + i*7) % 200)
				switch i % 5 {
				case 0:
					_, err := l.AllowAll(ctx, p.Request(key, 1), p.Request("x"+key, 1))
					count(err)
				case 1:
					count(l.Reset(ctx, p, key))
				case 2:
					r, err := l.Reserve(ctx, p.Request(key, 1), time.Second)
					if count(err); err == nil && r.ID != "" {
						count(l.Cancel(ctx, r.ID))
					}
				default:
					_, err := l.Allow(ctx, p, key)
					count(err)
				}
			}
		})
	}
	wg.Wait()
	if n := m.Len(); n > most {
		t.Errorf("%d keys are kept", n)
	}
	if allowed.Load() == 0 || overloaded.Load() == 0 {
		t.Errorf("%d were answered and %d were not", allowed.Load(), overloaded.Load())
	}
	allIdle(t, l, m, p, most, &us)
}

// allIdle: once all keys are idle, there is a place for as many new ones, and for no more.
func allIdle(t *testing.T, l *Limiter, m *memory.Store, p Policy, most int, us *atomic.Int64) {
	t.Helper()
	ctx := t.Context()
	us.Add(1e7) // everything is idle
	for i := range most {
		if _, err := l.Allow(ctx, p, fmt.Sprint("after ", i)); err != nil {
			t.Fatalf("a place is lost: %d: %v", i, err)
		}
	}
	if _, err := l.Allow(ctx, p, "one more"); !errors.Is(err, ErrOverloaded) || m.Len() != most {
		t.Errorf("a place too many: %d keys, %v", m.Len(), err)
	}
}
