package limiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// away is a Limiter over a spy whose database a test takes away.
type away struct {
	*testing.T
	*Limiter
	spy  *spy
	gone bool
}

// inAway runs f in a bubble. At its end nothing of the Limiter may run.
func inAway(t *testing.T, config *Config, f func(a *away)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if config == nil {
			config = &Config{}
		}
		if config.Logger == nil {
			config.Logger = slog.New(slog.DiscardHandler)
		}
		a := &away{T: t}
		a.Limiter, a.spy = watched(t, false, config)
		f(a)
	})
}

// leave takes the database away.
func (a *away) leave() {
	synctest.Wait()
	a.gone = true
	a.spy.set(fmt.Errorf("%w: away", ErrUnavailable))
}

// back brings the database back, and waits until what is owed is charged.
func (a *away) back() (charges int) {
	synctest.Wait()
	a.gone = false
	a.spy.set(nil)
	time.Sleep(defaultBreakFor)
	synctest.Wait()
	return a.charges()
}

// charges returns the number of charges since the last call of leave or back.
func (a *away) charges() (n int) {
	for _, name := range a.spy.sent() {
		if name == "charge" {
			n++
		}
	}
	return n
}

// allow requests units and reports whether they were granted.
func (a *away) allow(p Policy, key string, units float64) bool {
	a.Helper()
	r, err := a.AllowN(a.Context(), p, key, units)
	if err != nil || r.Policy != p || a.gone != (r.Source == SourceDegraded) {
		a.Errorf("%s: %+v, %v", p.Algorithm, r, err)
	}
	return r.Allowed
}

// drain requests single units until one is denied, and returns the number granted.
func (a *away) drain(p Policy, key string) (n int) {
	a.Helper()
	for a.allow(p, key, 1) {
		n++
	}
	return n
}

// level returns the units in the database.
func (a *away) level(p Policy, key string) float64 {
	a.Helper()
	r, err := a.Check(a.Context(), p, key, 0)
	if err != nil || r.Source != SourceDatabase {
		a.Fatalf("%+v, %v", r, err)
	}
	return r.Level
}

func (a *away) expectLevel(p Policy, key string, want float64) {
	a.Helper()
	if got := a.level(p, key); math.Abs(got-want) > 0.01 {
		a.Errorf("%s: the level is %v, want %v", p.Algorithm, got, want)
	}
}

// kept returns the numbers of keys that were decided in memory, and that owe.
func (a *away) kept() (keys, owed int) {
	a.local.mu.Lock()
	defer a.local.mu.Unlock()
	return a.local.memory.Len(), len(a.local.owed)
}

// localPolicies returns a policy of each algorithm, in which next to nothing leaks.
func localPolicies() (all []Policy) {
	for _, a := range Algorithms() {
		all = append(all, Policy{Name: "p", Algorithm: a, Limit: 100, Period: 100_000 * time.Hour, OnError: FailLocal, LocalShare: 0.25})
	}
	return append(all, Policy{Name: "p", Algorithm: FixedWindow, Limit: 100, Calendar: Month, OnError: FailLocal, LocalShare: 0.25})
}

// TestLocal: without the database a key gets its part of what was left, and no more. Then its
// row has what was granted, once. A second outage goes on from there.
func TestLocal(t *testing.T) {
	for _, p := range localPolicies() {
		for _, secret := range []string{"", "0123456789abcdef"} {
			config := &Config{}
			if secret != "" {
				config.KeySecret = []byte(secret)
			}
			inAway(t, config, func(a *away) {
				a.allow(p, "k", 40)
				a.leave()
				if n := a.drain(p, "k"); n != 15 {
					a.Errorf("%s: granted %d of a quarter of 60", p.Algorithm, n)
				}
				if n := a.drain(p, "new"); n != 25 {
					a.Errorf("%s: granted %d of a quarter of 100", p.Algorithm, n)
				}
				time.Sleep(10 * time.Second)
				if n := a.drain(p, "k"); n != 0 {
					a.Errorf("%s: granted %d more", p.Algorithm, n)
				}
				if n := a.charges(); n != 0 { // they would be in doubt
					a.Errorf("%s: %d charges without the database", p.Algorithm, n)
				}
				if n := a.back(); n != 2 {
					a.Errorf("%s: %d charges", p.Algorithm, n)
				}
				a.expectLevel(p, "k", 55)
				a.expectLevel(p, "new", 25)
				a.leave()
				if n := a.drain(p, "k"); n != 11 {
					a.Errorf("%s: granted %d of a quarter of 45", p.Algorithm, n)
				}
				a.back()
				a.expectLevel(p, "k", 66)
			})
		}
	}
}

// TestLocalVerbs: all verbs that FailOpen answers count here as in the database.
func TestLocalVerbs(t *testing.T) {
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 100, Period: 100_000 * time.Hour, OnError: FailLocal}
	inAway(t, nil, func(a *away) {
		a.leave()
		for _, v := range verbCalls {
			if err := v.call(a.Context(), a.engine, p); (err == nil) != v.opens {
				a.Errorf("%s: %v", v.name, err)
			}
			if err := v.call(a.Context(), a.InTx(nil).engine, p); err == nil {
				a.Errorf("%s passed in a transaction", v.name)
			}
		}
		a.back()
	})
	inAway(t, nil, func(a *away) {
		ctx := a.Context()
		must := func(r Result, err error) Result {
			a.Helper()
			if err != nil || r.Source != SourceDegraded && r.Granted > 0 {
				a.Errorf("%+v, %v", r, err)
			}
			return r
		}
		a.leave()
		three := must(a.AllowN(ctx, p, "k", 3))
		once := Request{Policy: p, Key: "k", Cost: 2, IdempotencyKey: "i"}
		if r := must(a.Do(ctx, once)); r.Level != 5 || r.Remaining != 5 || r.Burst != 10 || r.Replayed {
			a.Errorf("%+v", r)
		}
		if r := must(a.Do(ctx, once)); !r.Replayed {
			a.Errorf("%+v", r)
		}
		if r := must(a.Undo(ctx, p, "k", three)); math.Abs(r.Level-2) > 0.01 {
			a.Errorf("%+v", r)
		}
		must(a.Charge(ctx, p, "k", 30))
		must(a.Refund(ctx, p, "k", 5))
		must(a.Check(ctx, p, "k", 1))
		if r := must(a.AllowUpTo(ctx, p, "k", 1)); r.Allowed || r.RetryAfter <= 0 || r.Reason != ReasonLimit { // the charge is above the share
			a.Errorf("%+v", r)
		}
		if r := must(a.AllowUpTo(ctx, p, "l", 20)); r.Granted != 10 {
			a.Errorf("%+v", r)
		}
		// What the part can never grant is not denied: the database could.
		if _, err := a.AllowN(ctx, p, "m", 11); !errors.Is(err, ErrUnavailable) {
			a.Error(err)
		}
		if _, err := a.AllowAll(ctx, p.Request("m", 11), p.Request("n", 1)); !errors.Is(err, ErrUnavailable) {
			a.Error(err)
		}
		a.back()
		a.expectLevel(p, "k", 27)
		a.expectLevel(p, "l", 10)
		a.expectLevel(p, "n", 0)
	})
}

// TestLocalBlocks: a block that this process knows stays.
func TestLocalBlocks(t *testing.T) {
	for _, p := range localPolicies() {
		p.BlockFor = time.Hour
		inAway(t, nil, func(a *away) {
			ctx := a.Context()
			a.allow(p, "denied", 90)
			a.allow(p, "denied", 20)
			for _, key := range []string{"blocked", "unblocked", "reset"} {
				a.allow(p, key, 1)
			}
			a.allow(p, "reset", 99)
			if err := errors.Join(a.Block(ctx, p, "blocked", time.Minute), a.Block(ctx, p, "new", time.Minute), a.Block(ctx, p, "unblocked", time.Hour),
				a.Unblock(ctx, p, "unblocked"), a.Reset(ctx, p, "reset")); err != nil {
				a.Fatal(err)
			}
			a.leave()
			for key, lasts := range map[string]time.Duration{"denied": time.Hour, "blocked": time.Minute, "new": time.Minute, "unblocked": 0, "reset": 0} {
				r, err := a.Allow(ctx, p, key)
				if err != nil || r.Allowed != (lasts == 0) || !r.Allowed && (r.Reason != ReasonBlocked || r.RetryAfter != lasts) {
					a.Errorf("%s: %s: %+v, %v", p.Algorithm, key, r, err)
				}
			}
			time.Sleep(time.Minute)
			if !a.allow(p, "blocked", 1) {
				a.Errorf("%s: blocked for longer", p.Algorithm)
			}
			a.back()
		})
	}
}

// TestLocalAllowAll: all are granted or none. Policies that are FailOpen follow, and one that is
// FailClosed gives the error.
func TestLocalAllowAll(t *testing.T) {
	p := Policy{Name: "p", Algorithm: TokenBucket, Limit: 100, Period: 100_000 * time.Hour, OnError: FailLocal}
	opens, closes, shadow := p, p, p
	opens.Name, opens.OnError = "opens", FailOpen
	closes.Name, closes.OnError = "closes", FailClosed
	shadow.Name, shadow.Shadow = "shadow", true
	inAway(t, nil, func(a *away) {
		a.leave()
		if all, err := a.AllowAll(a.Context(), p.Request("k", 1), closes.Request("k", 1)); !errors.Is(err, ErrUnavailable) || all.Allowed {
			a.Errorf("%+v, %v", all, err)
		}
		for _, want := range []bool{true, false} {
			all, err := a.AllowAll(a.Context(), p.Request("k", 4), opens.Request("k", 4), shadow.Request("k", 4), p.Request("k", 2), p.Request("l", 1))
			if err != nil || all.Allowed != want || (all.DeniedBy == -1) != want {
				a.Fatalf("%+v, %v", all, err)
			}
			for i, r := range all.PerRequest {
				source := SourceDegraded
				if !want && (i == 1 || i == 2) {
					source = SourceSkipped
				}
				if r.Source != source || (r.Granted > 0) != want {
					a.Errorf("%d: %+v", i, r)
				}
			}
		}
		if n := a.back(); n != 2 {
			a.Errorf("%d charges", n)
		}
		a.expectLevel(p, "k", 6)
		a.expectLevel(p, "l", 1)
	})
}

// TestLocalWaits: turns in a queue are those of the part's rate.
func TestLocalWaits(t *testing.T) {
	p := Policy{Name: "p", Algorithm: LeakyBucketQueue, Limit: 60, Period: time.Minute, Burst: 100, OnError: FailLocal}
	inAway(t, nil, func(a *away) {
		a.leave()
		began := time.Now()
		for range 3 {
			if err := a.Wait(a.Context(), p, "k", 1); err != nil {
				a.Error(err)
			}
		}
		if took := time.Since(began); took != 20*time.Second {
			a.Errorf("three turns at 6 a minute took %v", took)
		}
		ctx, cancel := context.WithTimeout(a.Context(), time.Minute)
		defer cancel()
		go cancel()
		if err := a.Wait(ctx, p, "k", 1); !errors.Is(err, context.Canceled) {
			a.Error(err)
		}
		a.back()
		if slices.Contains(a.spy.sent(), "leave") {
			a.Errorf("sent %v", a.spy.sent())
		}
	})
}

// TestLocalBound: no more keys than MaxKeys are kept, and others get the error until some have
// nothing in use.
func TestLocalBound(t *testing.T) {
	p := Policy{Name: "p", Algorithm: FixedWindow, Limit: 100, Period: time.Minute, OnError: FailLocal}
	inAway(t, &Config{MaxKeys: 3}, func(a *away) {
		for i := range 10 {
			a.allow(p, fmt.Sprint("known ", i), 1)
		}
		if n := a.local.known.Len(); n != 3 {
			a.Errorf("%d keys are known", n)
		}
		for range 3 {
			a.leave()
			for i := range 10 {
				_, err := a.Allow(a.Context(), p, fmt.Sprint(i, time.Now()))
				if want := i >= 3; errors.Is(err, ErrUnavailable) != want {
					a.Errorf("key %d: %v", i, err)
				}
			}
			if keys, owed := a.kept(); keys > 3 || owed > 3 {
				a.Errorf("%d keys are kept, and %d owe", keys, owed)
			}
			time.Sleep(time.Minute + time.Second)
		}
		p.Period = time.Millisecond // so that the keys are idle before they are looked at
		for i := range 10 {
			_, _ = a.Allow(a.Context(), p, fmt.Sprint("short ", i))
			time.Sleep(2 * time.Millisecond)
		}
		if _, owed := a.kept(); owed > 3 {
			a.Errorf("%d keys owe", owed)
		}
		a.back()
	})
}

// TestLocalCosts: a policy that is not FailLocal keeps nothing, nor does a shadow or a
// transaction.
func TestLocalCosts(t *testing.T) {
	p := localPolicies()[0]
	open, shadow := p, p
	open.OnError, open.LocalShare = FailOpen, 0
	shadow.Shadow = true
	inAway(t, nil, func(a *away) {
		for _, v := range verbCalls {
			_ = v.call(a.Context(), a.engine, open)
			_ = v.call(a.Context(), a.InTx(nil).engine, p)
		}
		_, _ = a.Allow(a.Context(), open, "k")
		_, _ = a.Allow(a.Context(), shadow, "k")
		a.leave()
		for _, v := range verbCalls {
			_ = v.call(a.Context(), a.engine, open)
		}
		_, _ = a.Allow(a.Context(), shadow, "k")
		if a.local.known.Len() != 0 || a.local.used.Load() {
			a.Errorf("it keeps %d keys", a.local.known.Len())
		}
	})
}
