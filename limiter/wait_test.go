package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// TestWaitAllCancelledLater: a cancelled WaitAll gives back by the clock of the
// decisions, without the units that have leaked since.
func TestWaitAllCancelledLater(t *testing.T) {
	t.Parallel()
	queue := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 5}
	bucket := Policy{Name: "bucket", Algorithm: TokenBucket, Limit: 10, Period: time.Hour}
	now, advance := manualClock()
	answered := make(chan struct{}, 10)
	l := NewMemory(&Config{Now: now, Observe: func(context.Context, Observation) { answered <- struct{}{} }})
	allow := func(request Request) {
		t.Helper()
		if r, err := l.Do(t.Context(), request); err != nil || !r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
		<-answered
	}
	allow(queue.Request("k", 1))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { _, err := l.WaitAll(ctx, bucket.Request("k", 10), queue.Request("k", 1)); gone <- err }()
	<-answered
	<-answered
	advance(30 * time.Minute)
	allow(bucket.Request("k", 5))
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if r, err := l.Check(t.Context(), bucket, "k", 0); err != nil || r.Level < 4.999 || r.Level > 5.001 {
		t.Errorf("the level is %v, want the 5 of the later request: %v", r.Level, err)
	}
}

// waitAlone and waitWith wait in a queue alone, or together with another limit.
var waits = map[string]func(ctx context.Context, l *Limiter, queue Request) (Result, error){
	"DoWait": func(ctx context.Context, l *Limiter, queue Request) (Result, error) { return l.DoWait(ctx, queue) },
	"WaitAll": func(ctx context.Context, l *Limiter, queue Request) (Result, error) {
		other := Policy{Name: "other", Algorithm: GCRA, Limit: 1e6, Period: time.Second}
		return of(1)(l.WaitAll(ctx, other.Request(queue.Key, 1), queue))
	},
	"WaitAll alone": func(ctx context.Context, l *Limiter, queue Request) (Result, error) {
		return of(0)(l.WaitAll(ctx, queue))
	},
	"WaitAll in halves": func(ctx context.Context, l *Limiter, queue Request) (Result, error) {
		queue.Cost /= 2
		return of(1)(l.WaitAll(ctx, queue, queue))
	},
}

// of returns a function that selects a request's result, or the one that denied.
func of(i int) func(Results, error) (Result, error) {
	return func(all Results, err error) (Result, error) {
		switch {
		case err != nil:
			return Result{}, err
		case !all.Allowed:
			return all.PerRequest[all.DeniedBy], nil
		}
		return all.PerRequest[i], nil
	}
}

// TestWaitTakesAnUnusedPlace: in a full queue, a Wait gets the turn of one that left
// although another had queued behind it, exactly once.
func TestWaitTakesAnUnusedPlace(t *testing.T) {
	for name, wait := range waits {
		synctest.Test(t, func(t *testing.T) {
			l := NewMemory(nil)
			p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Second, Burst: 4}
			start := time.Now()
			done := make(chan time.Duration, 10)
			enter := func(ctx context.Context) {
				go func() {
					if r, err := wait(ctx, l, p.Request("k", 1)); err == nil && r.Allowed {
						done <- time.Since(start)
					}
				}()
				synctest.Wait()
			}
			enter(t.Context()) // its turn is now
			<-done
			enter(t.Context())
			ctx, leave := context.WithCancel(t.Context())
			enter(ctx) // in two seconds
			enter(t.Context())
			if r, err := wait(t.Context(), l, p.Request("k", 1)); err != nil || r.Allowed {
				t.Fatalf("%s: the queue is not full: %+v, %v", name, r, err)
			}
			leave()
			synctest.Wait()
			notForOthers(t, name, func(ctx context.Context, q Request) (Result, error) { return wait(ctx, l, q) }, p)
			ctx, leave = context.WithCancel(t.Context())
			enter(ctx) // takes the turn, and abandons it again
			leave()
			synctest.Wait()
			var taken Result
			go func() {
				var err error
				if taken, err = wait(t.Context(), l, p.Request("k", 1)); err != nil {
					t.Error(err)
				}
				done <- time.Since(start)
			}()
			synctest.Wait()
			if r, err := wait(t.Context(), l, p.Request("k", 1)); err != nil || r.Allowed {
				t.Errorf("%s: the turn is taken twice: %+v, %v", name, r, err)
			}
			want, half := 1.0, time.Duration(0)
			if name == "WaitAll in halves" { // waits for the turn of the second half
				want, half = 0.5, time.Second/2
			}
			for i := 1; i <= 3; i++ {
				if at := <-done; at != time.Duration(i)*time.Second+half {
					t.Errorf("%s: turn %d came after %v", name, i, at)
				}
			}
			if !taken.Allowed || taken.Granted != want || taken.Delay != 2*time.Second || taken.RetryAfter != 0 || taken.Reason != "" || taken.Limit != 1 || taken.Burst != 4 {
				t.Errorf("%s: got %+v", name, taken)
			}
		})
	}
}

// notForOthers: a turn is taken neither by a Wait whose deadline is before it, nor by one of more
// units, nor by one above the burst.
func notForOthers(t *testing.T, name string, wait func(context.Context, Request) (Result, error), p Policy) {
	t.Helper()
	soon, cancel := context.WithTimeout(t.Context(), 1900*time.Millisecond)
	defer cancel()
	if r, err := wait(soon, p.Request("k", 1)); err != nil || r.Allowed {
		t.Errorf("%s: a turn beyond the deadline: %+v, %v", name, r, err)
	}
	if r, err := wait(t.Context(), p.Request("k", 2)); err != nil || r.Allowed {
		t.Errorf("%s: two units in a turn of one: %+v, %v", name, r, err)
	}
	if r, err := wait(t.Context(), p.Request("other", 4.5)); err != nil || r.Allowed || r.RetryAfter != Never {
		t.Errorf("%s: above the burst: %+v, %v", name, r, err)
	}
}

// TestWaitHasNoPlace: an unused place is not given to a blocked key, after a Reset, under
// BlockFor, if another limit denies, or after Close.
func TestWaitHasNoPlace(t *testing.T) {
	denying := Policy{Name: "denying", Algorithm: GCRA, Limit: 1, Period: time.Hour}
	for name, c := range map[string]struct {
		blockFor time.Duration
		change   func(l *Limiter, p Policy) error
		others   []Request
	}{
		"blocked": {0, func(l *Limiter, p Policy) error { return l.Block(context.Background(), p, "k", time.Hour) }, nil},
		"reset": {0, func(l *Limiter, p Policy) error {
			err := l.Reset(context.Background(), p, "k")
			_, again := l.AllowN(context.Background(), p, "k", 4) // full
			return errors.Join(err, again)
		}, nil},
		"BlockFor":      {time.Hour, func(*Limiter, Policy) error { return nil }, nil},
		"another limit": {0, func(*Limiter, Policy) error { return nil }, []Request{denying.Request("k", 2)}},
		"full besides":  {0, func(l *Limiter, _ Policy) error { _, err := l.Allow(context.Background(), denying, "k"); return err }, []Request{denying.Request("k", 1)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := NewMemory(nil)
			p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Second, Burst: 4, BlockFor: c.blockFor}
			must.OK(l.Allow(t.Context(), p, "k"))(t)
			ctx, leave := context.WithCancel(t.Context())
			go func() { _ = l.Wait(ctx, p, "k", 1) }()
			synctest.Wait()
			if r, err := l.AllowN(t.Context(), p, "k", 2); err != nil || !r.Allowed {
				t.Fatal(r, err)
			}
			leave()
			synctest.Wait()
			must.Succeed(t, c.change(l, p))
			if all, err := l.WaitAll(t.Context(), append(c.others, p.Request("k", 1))...); err != nil || all.Allowed {
				t.Errorf("%s: WaitAll: %+v, %v", name, all, err)
			}
			if r, err := l.DoWait(t.Context(), p.Request("k", 1)); c.others == nil && (err != nil || r.Allowed) {
				t.Errorf("%s: DoWait: %+v, %v", name, r, err)
			} else if c.others != nil && (err != nil || !r.Allowed) { // it was given back
				t.Errorf("%s: the turn was lost: %+v, %v", name, r, err)
			}
		})
	}
}

// TestWaitKeepsThePace: clients come and leave at random. Whatever is abandoned and taken
// again, the requests that pass keep the queue's pace: after a request of n units, none
// passes for n times the period of a unit.
func TestWaitKeepsThePace(t *testing.T) {
	p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 30, Period: time.Second, Burst: 20}
	unit := p.Period / 30
	type passed struct {
		at    time.Time
		units float64
	}
	for name, wait := range waits {
		reused := 0
		for seed := range uint64(8) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 4))
				l := NewMemory(nil)
				var mu sync.Mutex
				var all []passed
				var clients sync.WaitGroup
				for range 1000 {
					units, patience := float64(1+random.IntN(3)), 3*time.Millisecond
					if random.IntN(4) == 0 {
						patience = 2 * time.Second
					}
					clients.Go(func() {
						ctx, leave := context.WithCancel(t.Context())
						defer leave()
						time.AfterFunc(patience, leave)
						if r, err := wait(ctx, l, p.Request("k", units)); err == nil && r.Allowed {
							mu.Lock()
							defer mu.Unlock()
							at := time.Now()
							if name == "WaitAll in halves" { // waits for the turn of the second half
								at = at.Add(-time.Duration(units / 2 * float64(unit)))
							}
							all = append(all, passed{at, units})
							if own := time.Duration((r.Level - r.Granted) * float64(unit)); r.Delay < own-time.Millisecond {
								reused++ // earlier than behind all others
							}
						}
					})
					time.Sleep(time.Duration(random.Int64N(int64(8 * time.Millisecond))))
				}
				clients.Wait()
				slices.SortFunc(all, func(a, b passed) int { return a.at.Compare(b.at) })
				for i := 1; i < len(all); i++ {
					// The time of a request and its delay are rounded to microseconds.
					if gap := all[i].at.Sub(all[i-1].at); gap < time.Duration(all[i-1].units*float64(unit))-2*time.Microsecond {
						t.Fatalf("%s, seed %d: %v after a request of %v units, want %v for each", name, seed, gap, all[i-1].units, unit)
					}
				}
			})
		}
		if reused < 50 {
			t.Errorf("%s: %d turns were taken again: too few to test anything", name, reused)
		}
	}
}
