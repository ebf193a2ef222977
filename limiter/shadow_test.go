package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
)

// twin returns a policy and the same policy as a shadow, under another name.
func twin(p Policy) (bites, shadow Policy) {
	bites, shadow = p, p
	bites.Name, shadow.Name, shadow.Shadow = "bites", "shadow", true
	return bites, shadow
}

// shadowed are ways to request, by the name of their verb.
var shadowed = map[string]func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error){
	"Do": func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error) {
		return l.AllowN(ctx, p, "k", n)
	},
	"AllowUpTo": func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error) {
		return l.AllowUpTo(ctx, p, "k", n)
	},
	"Check": func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error) {
		return l.Check(ctx, p, "k", n)
	},
	"Reserve": func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error) {
		h, err := l.Reserve(ctx, p.Request("k", n), time.Hour)
		return h.Result, err
	},
	"AllowAll": func(ctx context.Context, l *Limiter, p Policy, n float64) (Result, error) {
		all, err := l.AllowAll(ctx, p.Request("k", n))
		if err != nil {
			return Result{}, err
		}
		return all.PerRequest[0], nil
	},
}

// TestShadow: a shadow policy lets every request pass, and reports and counts what the same
// policy would have if it bit.
func TestShadow(t *testing.T) {
	t.Parallel()
	now, advance := manualClock()
	for _, a := range Algorithms() {
		for verb, request := range shadowed {
			if a == LeakyBucketQueue && verb == "Reserve" {
				continue
			}
			like := request
			if verb == "AllowAll" { // it decides each request of a shadow policy as Do does
				like = shadowed["Do"]
			}
			for _, blockFor := range []time.Duration{0, time.Minute} {
				name := fmt.Sprint(a, " ", verb, " ", blockFor)
				l, m := NewMemory(&Config{Now: now}), NewMemory(&Config{Now: now})
				bites, shadow := twin(Policy{Algorithm: a, Limit: 10, Period: time.Hour, BlockFor: blockFor})
				for i, n := range []float64{7, 2, 5, 1, 11, 1, 1} {
					want, err := like(t.Context(), l, bites, n)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					got, err := request(t.Context(), m, shadow, n)
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					lets := !want.Allowed || want.Granted < n
					if lets {
						want.Allowed, want.Granted, want.Shadowed = true, n, true
					}
					want.grant, want.Policy = got.grant, shadow
					if got != want || lets && got.grant.Made {
						t.Errorf("%s, request %d: got\n%+v, want\n%+v", name, i, got, want)
					}
					advance(time.Second)
				}
				one, _ := l.Check(t.Context(), bites, "k", 0)
				two, _ := m.Check(t.Context(), shadow, "k", 0)
				if two.Level != one.Level || two.Shadowed != !one.Allowed {
					t.Errorf("%s: then %+v, want %+v", name, two, one)
				}
			}
		}
	}
}

// TestShadowRemembered: a remembered denial of a shadow policy lets pass too, without the
// store.
func TestShadowRemembered(t *testing.T) {
	t.Parallel()
	now, _ := manualClock()
	l, s := watched(t, true, &Config{Now: now})
	_, p := twin(Policy{Algorithm: TokenBucket, Limit: 1, Period: time.Hour})
	for i, source := range []Source{SourceDatabase, SourceDatabase, SourceCache, SourceCache} {
		r, err := l.Allow(t.Context(), p, "k")
		if err != nil || !r.Allowed || r.Granted != 1 || r.Source != source || r.Shadowed != (i > 0) || (r.Reason == ReasonLimit) != (i > 0) || (r.RetryAfter > 0) != (i > 0) {
			t.Errorf("%d: %+v, %v", i, r, err)
		}
	}
	if len(s.calls) != 2 {
		t.Errorf("sent %v", s.calls)
	}
	// What is remembered is the denial: the same policy that bites is denied by it in an
	// AllowAll, too.
	known, _, ok := l.denied.lookup(&Request{Policy: p, Key: "k", Cost: 1})
	if !ok || known.Allowed || known.Shadowed {
		t.Errorf("remembered %+v", known)
	}
	bites := Policy{Name: "bites", Algorithm: TokenBucket, Limit: 2, Period: time.Hour}
	for i, source := range []Source{SourceCache, SourceCache, SourceSkipped, SourceSkipped} { // the last by a remembered denial of bites
		all, err := l.AllowAll(t.Context(), p.Request("k", 1), bites.Request("k", 1))
		if err != nil || all.Allowed != (i < 2) || all.PerRequest[0].Source != source || all.PerRequest[0].Shadowed != (i < 2) {
			t.Errorf("%d: %+v, %v", i, all, err)
		}
	}
}

// TestShadowFailure: no failure of the database makes a request of a shadow policy fail,
// except in a transaction.
func TestShadowFailure(t *testing.T) {
	t.Parallel()
	_, p := twin(Policy{Algorithm: GCRA, Limit: 10, Period: time.Hour})
	for _, away := range []error{
		fmt.Errorf("%w: away", ErrUnavailable), fmt.Errorf("%w: 5 wait", ErrOverloaded), ErrLocked, ErrNotMigrated, ErrMisconfigured,
		fmt.Errorf("%w: %w", store.ErrUnavailable, store.ErrAnswering),
	} {
		var logged bytes.Buffer
		l, s := watched(t, true, &Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
		s.err = away
		r, err := l.AllowN(t.Context(), p, "k", 2)
		if err != nil || !r.Allowed || r.Granted != 2 || !r.Shadowed || r.Source != SourceDegraded {
			t.Errorf("%v: %+v, %v", away, r, err)
		}
		if !strings.Contains(logged.String(), "the policy is a shadow") {
			t.Errorf("%v: logged %s", away, &logged)
		}
		h, err := l.Reserve(t.Context(), p.Request("k", 2), time.Hour)
		if err != nil || !h.Result.Shadowed || h.Result.Source != SourceDegraded || h.ID == "" {
			t.Errorf("%v: %+v, %v", away, h, err)
		}
		if err := l.Cancel(t.Context(), h.ID); err != nil {
			t.Errorf("%v: %v", away, err)
		}
		all, err := l.AllowAll(t.Context(), p.Request("k", 1), p.Request("l", 3))
		if err != nil || !all.Allowed || all.PerRequest[1].Granted != 3 || !all.PerRequest[1].Shadowed || all.PerRequest[1].Source != SourceDegraded {
			t.Errorf("%v: %+v, %v", away, all, err)
		}
		if len(s.calls) != 3 { // the second of the AllowAll is not sent
			t.Errorf("%v: sent %v", away, s.calls)
		}
		// What was not recorded is no success.
		if r, err := l.Charge(t.Context(), p, "k", 3); !errors.Is(err, away) {
			t.Errorf("%v: Charge: %+v, %v", away, r, err)
		}
		if r, err := l.Refund(t.Context(), p, "k", 3); !errors.Is(err, away) {
			t.Errorf("%v: Refund: %+v, %v", away, r, err)
		}
		if _, err := l.InTx(nil).Allow(t.Context(), p, "k"); !errors.Is(err, away) {
			t.Errorf("in a transaction: %v", err)
		}
		if _, err := l.InTx(nil).AllowAll(t.Context(), p.Request("k", 1)); !errors.Is(err, away) {
			t.Errorf("in a transaction: %v", err)
		}
	}
}

// TestShadowOwnFailure: errors that no database caused stay errors for a shadow policy.
func TestShadowOwnFailure(t *testing.T) {
	t.Parallel()
	_, p := twin(Policy{Algorithm: GCRA, Limit: 10, Period: time.Hour})
	l, s := watched(t, true, nil)
	for _, own := range []error{fmt.Errorf("%w: a key", ErrInvalid), ErrClosed, ErrUnsupported} {
		s.err = own
		if _, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, own) {
			t.Errorf("%v became %v", own, err)
		}
	}
	s.err = nil
	if _, err := l.Allow(t.Context(), p, ""); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	s.err = gone.Err()
	if _, err := l.Allow(gone, p, "k"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := l.AllowAll(gone, p.Request("k", 1), p.Request("l", 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("AllowAll: %v", err)
	}
}

// TestShadowWait: a Wait of a shadow policy takes its place in the queue and does not sleep.
func TestShadowWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewMemory(nil)
		_, p := twin(Policy{Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Minute, Burst: 3})
		bites := Policy{Name: "queue", Algorithm: LeakyBucketQueue, Limit: 1, Period: time.Minute, Burst: 3}
		start := time.Now()
		for i := range 5 {
			r, err := l.DoWait(t.Context(), p.Request("k", 1))
			if err != nil || !r.Allowed || r.Granted != 1 || r.Shadowed != (i >= 3) || i < 3 && r.Delay != time.Duration(i)*time.Minute {
				t.Errorf("%d: %+v, %v", i, r, err)
			}
			if err := l.Wait(t.Context(), p, "k", 3); err != nil {
				t.Error(err)
			}
		}
		for i := range 2 {
			if all, err := l.WaitAll(t.Context(), p.Request("n", 1)); err != nil || !all.Allowed || all.PerRequest[0].Delay != time.Duration(i)*time.Minute {
				t.Errorf("%d: %+v, %v", i, all, err)
			}
		}
		if time.Since(start) != 0 {
			t.Errorf("it slept for %v", time.Since(start))
		}
		for i := range 2 {
			all, err := l.WaitAll(t.Context(), p.Request("k", 1), p.Request("l", 2), bites.Request("k", 1))
			if err != nil || !all.Allowed || !all.PerRequest[0].Shadowed || all.PerRequest[1].Shadowed != (i == 1) {
				t.Errorf("%+v, %v", all, err)
			}
		}
		if time.Since(start) != time.Minute {
			t.Errorf("WaitAll slept for %v, want a minute for the queue that bites", time.Since(start))
		}
		waitAllGivesBack(t, l, p, bites)
		_ = l.Close()
	})
}

// waitAllGivesBack: a WaitAll that is cancelled gives back what shadow policies counted.
func waitAllGivesBack(t *testing.T, l *Limiter, p, bites Policy) {
	t.Helper()
	_, meter := twin(Policy{Algorithm: FixedWindow, Limit: 10, Period: 24 * time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	all, err := l.WaitAll(ctx, meter.Request("m", 3), p.Request("m", 2), bites.Request("l", 1))
	if err != nil || all.PerRequest[0].Level != 3 || all.PerRequest[1].Level != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	leave, left := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := l.WaitAll(leave, meter.Request("m", 3), p.Request("m", 1), bites.Request("l", 1))
		gone <- err
	}()
	synctest.Wait()
	if r, _ := l.Check(t.Context(), meter, "m", 0); r.Level != 6 {
		t.Errorf("%+v", r)
	}
	left()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	one, _ := l.Check(t.Context(), meter, "m", 0)
	two, _ := l.Check(t.Context(), p, "m", 0)
	if one.Level != 3 || two.Level != 2 {
		t.Errorf("levels %v and %v after a cancelled WaitAll, want 3 and 2", one.Level, two.Level)
	}
}

// TestShadowAll: in an AllowAll the policies that bite are decided all or none. If they are
// granted, each request of a shadow policy is decided by itself; if not, none is.
func TestShadowAll(t *testing.T) {
	t.Parallel()
	now, _ := manualClock()
	l, s := watched(t, false, &Config{Now: now})
	bites, shadow := twin(Policy{Algorithm: TokenBucket, Limit: 10, Period: time.Hour})
	level := func(p Policy, key string) float64 {
		t.Helper()
		r := must.OK(l.Check(t.Context(), p, key, 0))(t)
		return r.Level
	}
	for name, e := range map[string]*engine{"a": l.engine, "b": l.InTx(nil).engine} {
		// The sum of the shadow's requests does not fit, but each alone: the first two are
		// counted, one after the other.
		all, err := e.AllowAll(t.Context(), shadow.Request(name, 6), bites.Request(name, 4), shadow.Request(name, 3), shadow.Request(name, 5), bites.Request(name, 4))
		if err != nil || !all.Allowed || all.DeniedBy != -1 {
			t.Fatalf("%s: %+v, %v", name, all, err)
		}
		for i, want := range []struct {
			level    float64
			shadowed bool
		}{{6, false}, {4, false}, {9, false}, {9, true}, {8, false}} {
			if r := all.PerRequest[i]; !r.Allowed || r.Granted == 0 || r.Level != want.level || r.Shadowed != want.shadowed || r.Source != SourceDatabase {
				t.Errorf("%s: request %d: %+v", name, i, r)
			}
		}
		// The whole is denied: shadow policies consume nothing and are not blamed.
		s.calls = nil
		all, err = e.AllowAll(t.Context(), shadow.Request(name, 11), shadow.Request(name, 1), bites.Request(name, 3))
		if err != nil || all.Allowed || all.DeniedBy != 2 || len(s.calls) != 1 {
			t.Fatalf("%s: %+v, %v, sent %v", name, all, err, s.calls)
		}
		for _, r := range all.PerRequest[:2] {
			if r.Allowed || r.Shadowed || r.Source != SourceSkipped || r.Reason != "" || !r.At.Equal(now()) || r.Burst != 10 {
				t.Errorf("%s: %+v", name, r)
			}
		}
		if level(bites, name) != 8 || level(shadow, name) != 9 {
			t.Errorf("%s: levels %v and %v", name, level(bites, name), level(shadow, name))
		}
	}
	// The store may fail after the others were granted.
	s.Store = failing{s.Store}
	all, err := l.AllowAll(t.Context(), shadow.Request("fails", 1), bites.Request("c", 1), shadow.Request("fails", 1))
	if err != nil || !all.Allowed || all.PerRequest[0].Source != SourceDegraded || !all.PerRequest[2].Shadowed || level(bites, "c") != 1 {
		t.Errorf("%+v, %v", all, err)
	}
	other := bites
	other.Shadow = true
	if _, err := l.AllowAll(t.Context(), bites.Request("d", 1), other.Request("d", 1)); !errors.Is(err, ErrInvalid) {
		t.Errorf("one name under two policies: %v", err)
	}
}

// failing is a store in which Takes of the key "fails" fail.
type failing struct{ store.Store }

func (f failing) Do(ctx context.Context, op *store.Op) error {
	if op.Kind == store.Take && op.Key == "fails" {
		return fmt.Errorf("%w: the key cannot be encoded", ErrInvalid)
	}
	return f.Store.Do(ctx, op)
}
