package limiter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestMaxKeysChangesNoAnswer: with MaxKeys a limiter answers as one without, or with
// ErrOverloaded. It does that only if its keys in use leave no room.
func TestMaxKeysChangesNoAnswer(t *testing.T) {
	t.Parallel()
	for _, a := range Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(rt *rapid.T) { newBoundedHistory(rt, a).run() })
		})
	}
}

// boundedHistory is a random history of a limiter with MaxKeys and of one without.
type boundedHistory struct {
	*rapid.T
	algorithm   Algorithm
	at          int64
	most        int
	small, free *memory.Store
	limiters    [2]*Limiter // with a bound, and without
	ended       bool
	results     []pair[Result]
	reserved    []pair[Reservation]
}

// pair is the answer of each limiter, for a policy and a key.
type pair[T any] struct {
	policy Policy
	key    string
	answer [2]T
}

func newBoundedHistory(rt *rapid.T, a Algorithm) *boundedHistory {
	h := &boundedHistory{T: rt, algorithm: a, at: 1_700_000_000_000_000, most: rapid.IntRange(1, 5).Draw(rt, "MaxKeys"), free: memory.New()}
	h.small = memory.NewBounded(h.most)
	config := &Config{Now: func() time.Time { return time.UnixMicro(h.at) }, IdempotencyTTL: 10 * time.Second}
	h.limiters = [2]*Limiter{newInMemory(h.small, config), newInMemory(h.free, config)}
	return h
}

func (h *boundedHistory) run() {
	for i := 0; i < 80 && !h.ended; i++ {
		h.at += rapid.SampledFrom([]int64{2, 9, 250_000, 1_000_000, 1_700_000, 15_000_000}).Draw(h.T, "µs")
		h.step()
		if n := h.small.Len(); n > h.most {
			h.Fatalf("%d keys are kept, more than %d", n, h.most)
		}
	}
}

// policy returns the policy of a key. With changing plans a key is idle by the last one,
// and the next may differ.
func (h *boundedHistory) policy(key int) Policy {
	p := Policy{Name: "p", Algorithm: h.algorithm, Limit: 3, Period: time.Duration(1+key%3) * time.Second}
	if key%2 == 0 {
		p.BlockFor = 2 * time.Second
	}
	return p
}

func (h *boundedHistory) step() {
	ctx := context.Background()
	number := rapid.IntRange(1, 8).Draw(h.T, "key")
	p, key := h.policy(number), fmt.Sprint("k", number)
	n := float64(rapid.IntRange(1, 4).Draw(h.T, "n"))
	queue := h.algorithm == LeakyBucketQueue
	switch verb := rapid.IntRange(0, 14).Draw(h.T, "verb"); {
	case verb <= 2:
		if r, ok := both(h, 1, func(l *Limiter) (Result, error) { return l.AllowN(ctx, p, key, n) }); ok {
			h.results = append(h.results, pair[Result]{p, key, r})
		}
	case verb == 3:
		both(h, 1, func(l *Limiter) (Result, error) { return l.AllowUpTo(ctx, p, key, n) })
	case verb == 4:
		both(h, 0, func(l *Limiter) (Usage, error) {
			u, err := l.Usage(ctx, p, key)
			u.Reservations, u.Reserved, u.Spent = 0, 0, 0 // those that expired may have been forgotten already
			return u, err
		})
	case verb == 5:
		both(h, 1, func(l *Limiter) (Result, error) { return l.Charge(ctx, p, key, n) })
	case verb == 6 && !queue:
		both(h, 0, func(l *Limiter) (Result, error) { return l.Refund(ctx, p, key, n) })
	case verb == 7:
		both(h, 0, func(l *Limiter) (bool, error) { return true, l.Reset(ctx, p, key) })
	case verb == 8 && h.algorithm != SlidingWindowCounter: // whose Block of an unused key begins a window of 1 µs
		both(h, 1, func(l *Limiter) (bool, error) { return true, l.Block(ctx, p, key, time.Duration(n)*time.Second) })
	case verb == 9:
		both(h, 0, func(l *Limiter) (bool, error) { return true, l.Unblock(ctx, p, key) })
	case verb == 10:
		number := rapid.IntRange(9, 12).Draw(h.T, "other key")
		other := h.policy(number).Request(fmt.Sprint("k", number), n)
		if _, ok := both(h, 2, func(l *Limiter) (Results, error) { return l.AllowAll(ctx, p.Request(key, n), other) }); !ok {
			h.ended = true // it may have given back what expired, which the other limiter has not
		}
	case verb == 11 && !queue:
		in := p.Request(key, n)
		in.IdempotencyKey = rapid.SampledFrom([]string{"", "a", "b"}).Draw(h.T, "idempotency key")
		ttl := time.Duration(n) * time.Second
		if r, ok := both(h, math.MaxInt, func(l *Limiter) (Reservation, error) { return l.Reserve(ctx, in, ttl) }); ok && r[0].ID != "" {
			h.reserved = append(h.reserved, pair[Reservation]{p, key, r})
		}
	case verb >= 12 && verb <= 13 && len(h.reserved) > 0:
		at := rapid.IntRange(0, len(h.reserved)-1).Draw(h.T, "reservation")
		ended := h.reserved[at].answer
		units := float64(rapid.IntRange(0, 5).Draw(h.T, "units"))
		both(h, 1, func(l *Limiter) (Result, error) {
			id := ended[0].ID
			if l == h.limiters[1] {
				id = ended[1].ID
			}
			if units == 0 {
				return Result{}, l.Cancel(ctx, id)
			}
			return l.Settle(ctx, id, units)
		})
	case verb == 14 && !queue && len(h.results) > 0:
		at := rapid.IntRange(0, len(h.results)-1).Draw(h.T, "undone")
		r := h.results[at]
		h.results = append(h.results[:at], h.results[at+1:]...)
		both(h, 0, func(l *Limiter) (Result, error) { return l.Undo(ctx, r.policy, r.key, r.answer[0]) })
	}
}

// both runs a method on the limiter with a bound and, unless that has no room for at most
// keys new keys, on the other one. It compares the answers.
func both[T any](h *boundedHistory, keys int, f func(l *Limiter) (T, error)) (answers [2]T, ok bool) {
	var err, want error
	if answers[0], err = f(h.limiters[0]); errors.Is(err, ErrOverloaded) {
		h.free.Forget(&h.at)
		if used := h.free.Len(); keys < math.MaxInt && used+keys <= h.most {
			h.Fatalf("%v, but only %d of %d keys are in use", err, used, h.most)
		}
		return answers, false
	}
	answers[1], want = f(h.limiters[1])
	got, without := answers[0], answers[1]
	if r, is := any(got).(Reservation); is { // its ID is random
		r.ID = any(without).(Reservation).ID
		got = any(r).(T)
	}
	if !alike(reflect.ValueOf(got), reflect.ValueOf(without)) || fmt.Sprint(err) != fmt.Sprint(want) && !errors.Is(want, ErrNoReservation) {
		h.Fatalf("got  %+v, %v\nwant %+v, %v", got, err, without, want)
	}
	return answers, err == nil
}

// alike reports whether two answers are equal but for rounding: a key that was forgotten
// while it was idle adds up its units in another order.
func alike(a, b reflect.Value) bool {
	switch {
	case a.Type() == reflect.TypeFor[time.Time]():
		return a.Interface().(time.Time).Equal(b.Interface().(time.Time))
	case a.Type() == reflect.TypeFor[time.Duration]():
		return math.Abs(float64(a.Int()-b.Int())) <= float64(time.Microsecond)
	case a.Kind() == reflect.Float64:
		return math.Abs(a.Float()-b.Float()) <= 1e-9
	case a.Kind() == reflect.Struct:
		for i := range a.NumField() {
			if !alike(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	case a.Kind() == reflect.Slice:
		if a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !alike(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	}
	return a.Equal(b)
}

// TestMaxKeysOfKeysInUse: a new key is denied by ErrOverloaded, FailOpen or not, while
// each key has units, a block or a reservation. Reads and known keys are answered. Each
// key that becomes idle makes room for one.
func TestMaxKeysOfKeysInUse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now, MaxKeys: 3})
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 5, Period: 5 * time.Second, OnError: FailOpen}
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
	if err := l.Unblock(ctx, p, "blocked"); err != nil {
		t.Fatal(err)
	}
	fits("unblocked", "after the block")
	full("again")
	if err := l.Cancel(ctx, reserved.ID); err != nil {
		t.Fatal(err)
	}
	fits("cancelled", "after the reservation")
	full("again")
	if err := l.Reset(ctx, p, "next"); err != nil {
		t.Fatal(err)
	}
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
	if _, err := order("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Reserve(ctx, p.Request("k", 1), time.Second); err != nil {
		t.Fatal(err)
	}
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
	if err := l.Reset(ctx, p, "k"); err != nil {
		t.Fatal(err)
	}
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
	if err := l.Reset(ctx, p, "new"); err != nil {
		t.Fatal(err)
	}
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

func TestMaxKeysInvalid(t *testing.T) {
	t.Parallel()
	p := Policy{Name: "p", Algorithm: GCRA, Limit: 1, Period: time.Second, OnError: FailOpen}
	want := "Config.MaxKeys -1: must not be negative; for no bound use math.MaxInt"
	if _, err := NewMemory(&Config{MaxKeys: -1}).Allow(context.Background(), p, "k"); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if r, err := NewMemory(&Config{MaxKeys: math.MaxInt}).Allow(context.Background(), p, "k"); err != nil || !r.Allowed {
		t.Errorf("no bound: %+v, %v", r, err)
	}
	c := (&Config{MaxKeys: -1}).withDefaults()
	if err := c.validate(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("validate: %v", err)
	}
}
