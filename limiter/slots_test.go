package limiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

var exports = Policy{Name: "exports", Algorithm: Concurrency, Limit: 3, Period: 10 * time.Second}

// TestSlotsAreExact compares random calls with a list of slots, each with its end: what is held is
// never more than the limit, a slot ends at its end and not before, what has ended is not renewed
// or released, and fences grow, also after the limiter has forgotten the key.
func TestSlotsAreExact(t *testing.T) {
	type slot struct {
		id   string
		cost int
		end  time.Time
	}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		now, advance := manualClock()
		l, forget, _ := NewForgetting(&Config{Now: now})
		var all []slot
		var fence int64
		held := func() (n int) {
			for _, s := range all {
				if s.end.After(now()) {
					n += s.cost
				}
			}
			return n
		}
		for range 60 {
			advance(time.Duration(random.IntN(4)) * time.Second)
			ttl := time.Duration(1+random.IntN(9)) * time.Second
			cost := 1 + random.IntN(2)
			switch op := random.IntN(6); {
			case op < 3 || len(all) == 0:
				got, err := l.DoAcquire(t.Context(), exports.Request("k", float64(cost)), ttl)
				if err != nil || got.Result.Allowed != (held()+cost <= 3) {
					t.Fatalf("seed %d: %d held, asked for %d: %+v, %v", seed, held(), cost, got, err)
				}
				if got.Result.Allowed {
					if !got.ExpiresAt.Equal(now().Add(ttl)) || got.Fence <= fence {
						t.Fatalf("seed %d: ends at %v, fence %d after %d", seed, got.ExpiresAt, got.Fence, fence)
					}
					fence, all = got.Fence, append(all, slot{got.ID, cost, got.ExpiresAt})
				}
				if got.Result.Level != float64(held()) {
					t.Fatalf("seed %d: level %v with %d held", seed, got.Result.Level, held())
				}
			case op == 5:
				forget()
			default:
				i := random.IntN(len(all))
				s := &all[i]
				is := s.end.After(now())
				if op == 3 {
					end, err := l.Renew(t.Context(), s.id, ttl)
					if is != (err == nil) || !is && !errors.Is(err, ErrNoSlot) || is && !end.Equal(later(s.end, now().Add(ttl))) {
						t.Fatalf("seed %d: renewed to %v, %v, of %v at %v", seed, end, err, s.end, now())
					}
					if is {
						s.end = end
					}
				} else {
					if err := l.Release(t.Context(), s.id); is != (err == nil) || !is && !errors.Is(err, ErrNoSlot) {
						t.Fatalf("seed %d: released: %v, of %v at %v", seed, err, s.end, now())
					}
					all = slices.Delete(all, i, i+1)
				}
			}
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// TestSlotsAndOperators: Block denies new slots and leaves those held, Reset takes them away and
// keeps the fence, and a smaller Limit takes none away.
func TestSlotsAndOperators(t *testing.T) {
	now, advance := manualClock()
	l := NewMemory(&Config{Now: now})
	ctx := t.Context()
	a := must.OK(l.Acquire(ctx, exports, "k"))(t)
	b := must.OK(l.DoAcquire(ctx, exports.Request("k", 2), 4*time.Second))(t)
	small := exports
	small.Limit = 2
	if u, err := l.Usage(ctx, small, "k"); err != nil || u.Result.Level != 3 || u.Result.Remaining != 0 || u.Reservations != 2 || u.Spent != 3 || u.Result.RetryAfter != 0 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if r, err := l.Check(ctx, small, "k", 2); err != nil || r.Allowed || r.RetryAfter != 10*time.Second || r.ResetAfter != 10*time.Second || r.Reason != ReasonLimit {
		t.Errorf("check: %+v, %v", r, err)
	}
	if r, err := l.Check(ctx, exports, "k", 4); err != nil || r.Allowed || r.RetryAfter != Never {
		t.Errorf("above the limit: %+v, %v", r, err)
	}
	if s, err := l.DoAcquire(ctx, exports.Request("k", 4), 0); err != nil || s.Result.Allowed || s.Result.RetryAfter != Never || s.ID != "" {
		t.Errorf("above the limit: %+v, %v", s, err)
	}
	must.Succeed(t, l.Block(ctx, exports, "k", time.Minute))
	must.Succeed(t, l.Release(ctx, b.ID))
	if s, err := l.Acquire(ctx, exports, "k"); err != nil || s.Result.Reason != ReasonBlocked || s.Result.RetryAfter != time.Minute || s.Result.Remaining != 0 {
		t.Errorf("blocked: %+v, %v", s, err)
	}
	advance(9 * time.Second)
	if end, err := l.Renew(ctx, a.ID, 0); err != nil || !end.Equal(now().Add(10*time.Second)) {
		t.Errorf("renewed while blocked: %v, %v", end, err)
	}
	must.Succeed(t, l.Unblock(ctx, exports, "k"))
	must.Succeed(t, l.Reset(ctx, exports, "k"))
	if err := l.Release(ctx, a.ID); !errors.Is(err, ErrNoSlot) {
		t.Errorf("released after a Reset: %v", err)
	}
	if s, err := l.Acquire(ctx, exports, "k"); err != nil || !s.Result.Allowed || s.Fence <= b.Fence {
		t.Errorf("after a Reset: %+v, %v", s, err)
	}
}

// TestSlotsRefuse: what has no meaning for slots is an error, and nothing is held.
func TestSlotsRefuse(t *testing.T) {
	l := NewMemory(nil)
	ctx, bucket := t.Context(), PerSecond("b", 1)
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"Allow":       {func() error { _, err := l.Allow(ctx, exports, "k"); return err }, ErrUnsupported},
		"AllowAll":    {func() error { _, err := l.AllowAll(ctx, exports.Request("k", 1)); return err }, ErrUnsupported},
		"Refund":      {func() error { _, err := l.Refund(ctx, exports, "k", 1); return err }, ErrUnsupported},
		"Attempt":     {func() error { _, err := l.Attempt(ctx, exports, "k", AttemptOptions{}); return err }, ErrUnsupported},
		"of a bucket": {func() error { _, err := l.Acquire(ctx, bucket, "k"); return err }, ErrUnsupported},
		"IdempotencyKey": {func() error {
			_, err := l.DoAcquire(ctx, Request{Policy: exports, Key: "k", Cost: 1, IdempotencyKey: "i"}, 0)
			return err
		}, ErrUnsupported},
		"cost 0":      {func() error { _, err := l.DoAcquire(ctx, exports.Request("k", 0), 0); return err }, ErrInvalid},
		"cost 1.5":    {func() error { _, err := l.DoAcquire(ctx, exports.Request("k", 1.5), 0); return err }, ErrInvalid},
		"a short ttl": {func() error { _, err := l.DoAcquire(ctx, exports.Request("k", 1), time.Millisecond); return err }, ErrInvalid},
		"a negative ttl": {func() error {
			_, err := l.Renew(ctx, "concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:p:YWxpY2U", -1)
			return err
		}, ErrInvalid},
		"no ID":        {func() error { return l.Release(ctx, "x") }, ErrInvalid},
		"a ticket":     {func() error { return l.Release(ctx, "attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:p:YWxpY2U") }, ErrInvalid},
		"another's":    {func() error { return l.Release(ctx, "concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:p:YWxpY2U") }, ErrNoSlot},
		"Keep of none": {func() error { return l.Keep(ctx, Slot{}, nil) }, ErrInvalid},
	} {
		if err := c.call(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for field, change := range map[string]func(*Policy){
		"Limit":    func(p *Policy) { p.Limit = 1.5 },
		"Burst":    func(p *Policy) { p.Burst = 9 },
		"Period":   func(p *Policy) { p.Period = time.Millisecond },
		"BlockFor": func(p *Policy) { p.BlockFor = time.Second },
		"OnError":  func(p *Policy) { p.OnError = FailOpen },
		"MaxKeys":  func(p *Policy) { p.MaxKeys = 1 },
		"Lease":    func(p *Policy) { p.Lease = 0.1 },
		"BlockMax": func(p *Policy) { p.BlockMax = time.Second },
	} {
		p := exports
		change(&p)
		var refused *PolicyError
		if err := p.Validate(); !errors.As(err, &refused) || refused.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if u := must.OK(l.Usage(ctx, exports, "k"))(t); u.Reservations != 0 {
		t.Errorf("%d slots are held", u.Reservations)
	}
}

// TestShadowSlots: what a shadow policy lets pass holds nothing, and its ID changes nothing.
func TestShadowSlots(t *testing.T) {
	l := NewMemory(nil)
	p := exports
	p.Limit, p.Shadow = 1, true
	held := must.OK(l.Acquire(t.Context(), p, "k"))(t)
	more := must.OK(l.Acquire(t.Context(), p, "k"))(t)
	if held.Result.Shadowed || !more.Result.Shadowed || more.Fence != 0 {
		t.Fatalf("got %+v and %+v", held, more)
	}
	must.Succeed(t, l.Release(t.Context(), more.ID))
	must.OK(l.Renew(t.Context(), more.ID, 0))(t)
	must.Succeed(t, l.Keep(t.Context(), more, func(context.Context) error { return nil }))
	if u := must.OK(l.Usage(t.Context(), p, "k"))(t); u.Reservations != 1 {
		t.Errorf("%d slots are held", u.Reservations)
	}
}

// TestAcquireWaitInOrder: callers get a slot in the order in which they came, at once when one is
// released in this process, and when one ends. One that leaves takes nobody's turn.
func TestAcquireWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewMemory(&Config{KeySecret: []byte("a key's hash is in its slots' IDs")})
		p := exports
		p.Limit = 1
		ctx, start := t.Context(), time.Now()
		first := must.OK(l.Acquire(ctx, p, "k"))(t)
		type got struct {
			n     int
			after time.Duration
			id    string
		}
		slots := make(chan got, 10)
		var working sync.WaitGroup
		wait := func(ctx context.Context, n int) {
			working.Go(func() {
				s, err := l.AcquireWait(ctx, p.Request("k", 1), 0)
				switch {
				case ctx.Err() != nil:
					if !errors.Is(err, context.Canceled) {
						t.Errorf("cancelled: %+v, %v", s, err)
					}
				case err != nil || !s.Result.Allowed:
					t.Errorf("got %+v, %v", s, err)
				default:
					slots <- got{n, time.Since(start), s.ID}
				}
			})
			synctest.Wait()
		}
		cancelled, cancel := context.WithCancel(ctx)
		wait(cancelled, 0)
		for n := 1; n <= 3; n++ {
			wait(ctx, n)
		}
		cancel()
		time.Sleep(2 * time.Second)
		must.Succeed(t, l.Release(ctx, first.ID))
		if s := <-slots; s.n != 1 || s.after != 2*time.Second { // at once
			t.Errorf("got %+v", s)
		}
		s := <-slots // at the end of the first's
		if s.n != 2 || s.after.Truncate(time.Millisecond) != 12*time.Second {
			t.Errorf("got %+v", s)
		}
		must.Succeed(t, l.Reset(ctx, p, "k")) // is found by looking
		if s := <-slots; s.n != 3 || s.after > 12*time.Second+5*longestPause/4 {
			t.Errorf("got %+v", s)
		}
		working.Wait()
		if s, err := l.AcquireWait(ctx, p.Request("k", 2), 0); err != nil || s.Result.Allowed || s.Result.RetryAfter != Never {
			t.Errorf("above the limit: %+v, %v", s, err)
		}
		if len(l.lines.of) != 0 {
			t.Errorf("lines are left: %v", l.lines.of)
		}
	})
}

// TestKeepRenews: fn holds its slot for as long as it runs, and no longer. Its error is returned,
// and a panic releases too.
func TestKeepRenews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewMemory(nil)
		p := exports
		p.Limit = 1
		broken := errors.New("broken")
		err := l.DoWith(t.Context(), p, "k", func(ctx context.Context) error {
			for range 100 {
				time.Sleep(time.Second)
				if s, err := l.Acquire(ctx, p, "k"); err != nil || s.Result.Allowed {
					t.Fatalf("another holds it: %+v, %v", s, err)
				}
			}
			var denied *DeniedError
			if err := l.DoWith(ctx, p, "k", nil); !errors.As(err, &denied) {
				t.Errorf("got %v", err)
			}
			return broken
		})
		if err != broken {
			t.Errorf("got %v", err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = l.DoWith(t.Context(), p, "k", func(context.Context) error { panic("fn") })
		}()
		s := must.OK(l.Acquire(t.Context(), p, "k"))(t)
		must.Succeed(t, l.Keep(t.Context(), Slot{ID: s.ID}, func(context.Context) error { return nil })) // from another process
		if s := must.OK(l.Acquire(t.Context(), p, "k"))(t); !s.Result.Allowed {
			t.Errorf("got %+v", s)
		}
	})
}

// TestKeepStopsInTime: if the slot cannot be renewed, fn's context ends before others may hold the
// slot, also if the answer to the Acquire took long; if the slot is taken away, at the next
// renewal. Keep then says so.
func TestKeepStopsInTime(t *testing.T) {
	for name, lose := range map[string]func(l *Limiter, p Policy) error{
		"no database": func(l *Limiter, _ Policy) error { return l.Close() },
		"reset":       func(l *Limiter, p Policy) error { return l.Reset(context.Background(), p, "k") },
	} {
		synctest.Test(t, func(t *testing.T) {
			rows, p := NewMemory(nil), exports
			p.Limit = 1
			l := newInMemory(nil, &Config{Observe: func(_ context.Context, o Observation) {
				if o.Verb == VerbAcquire { // its answer is late
					time.Sleep(3 * time.Second)
				}
			}})
			l.store, l.unbounded = rows.store, rows.store
			start := time.Now()
			slot := must.OK(l.Acquire(t.Context(), p, "k"))(t)
			must.Succeed(t, lose(l, p))
			err := l.Keep(t.Context(), slot, func(ctx context.Context) error {
				<-ctx.Done()
				if s, err := rows.Check(context.Background(), p, "k", 1); err != nil || s.Allowed && name != "reset" {
					t.Errorf("%s: another may hold it: %+v, %v", name, s, err)
				}
				if !errors.Is(context.Cause(ctx), ErrNoSlot) {
					t.Errorf("%s: the cause is %v", name, context.Cause(ctx))
				}
				return ctx.Err()
			})
			if !errors.Is(err, ErrNoSlot) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v", name, err)
			}
			if since := time.Since(start); since > 9*time.Second || name == "no database" && since != 9*time.Second {
				t.Errorf("%s: it ended after %v", name, since)
			}
		})
	}
}

// TestSlotInJSON: a denial has no slot.
func TestSlotInJSON(t *testing.T) {
	now, _ := manualClock()
	l := NewMemory(&Config{Now: now})
	s := must.OK(l.Acquire(t.Context(), exports, "k"))(t)
	want := fmt.Sprintf(`{"id":%q,"fence":%d,"expires_at":%q,"result":`, s.ID, s.Fence, s.ExpiresAt.Format(time.RFC3339Nano))
	if got := string(must.OK(s.MarshalJSON())(t)); got[:len(want)] != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := string(must.OK(Slot{}.MarshalJSON())(t)); got[:50] != `{"id":null,"fence":null,"expires_at":null,"result"` {
		t.Errorf("got %s", got)
	}
}

// unlimited is Policies that limit no key.
type unlimited struct{}

func (unlimited) Snapshot() Overrides { return unlimited{} }

func (unlimited) Override(*Policy, string, func() time.Time) Ruling { return Ruling{Unlimited: true} }

// TestUnlimitedSlots: an unlimited key gets any number of slots, of which nothing is held.
func TestUnlimitedSlots(t *testing.T) {
	l := NewMemory(&Config{Policies: unlimited{}})
	for range 5 {
		s := must.OK(l.DoAcquire(t.Context(), exports.Request("k", 3), time.Minute))(t)
		if !s.Result.Allowed || s.Result.Source != SourceOverride || s.Fence != 0 || s.ExpiresAt.Sub(s.Result.At) != time.Minute {
			t.Fatalf("got %+v", s)
		}
		must.Succeed(t, l.Keep(t.Context(), s, func(context.Context) error { return nil }))
		must.Succeed(t, l.Release(t.Context(), s.ID))
	}
}
