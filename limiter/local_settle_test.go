package limiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestLocalSettlesWhatCounts: units that have leaked, or whose window has ended, are not
// charged.
func TestLocalSettlesWhatCounts(t *testing.T) {
	for _, c := range []struct {
		algorithm Algorithm
		half      float64 // in use after half a period, of 20; before the outage the key was empty
	}{
		{LeakyBucket, 7.5}, {LeakyBucketQueue, 7.5}, {TokenBucket, 7.5}, {GCRA, 7.5}, {FixedWindow, 20}, {SlidingWindowCounter, 20}, {SlidingWindowLog, 20},
	} {
		p := Policy{Name: "p", Algorithm: c.algorithm, Limit: 100, Period: time.Hour, OnError: FailLocal, LocalShare: 0.25}
		for periods, want := range map[float64]float64{0.5: c.half, 3: 0} {
			inAway(t, nil, func(a *away) {
				time.Sleep(p.Period - time.Duration(time.Now().UnixNano())%p.Period) // a window of the clock begins
				a.leave()
				if !a.allow(p, "k", 20) {
					a.Errorf("%s: denied", p.Algorithm)
				}
				time.Sleep(time.Duration(periods * float64(p.Period)))
				if n := a.back(); (n > 0) != (want > 0) {
					a.Errorf("%s: %d charges after %v periods", p.Algorithm, n, periods)
				}
				a.expectLevel(p, "k", want)
			})
		}
	}
}

// TestLocalLostAnswer: a charge without an answer is sent again, and counts once or twice. One
// that the database refuses for its key is not.
func TestLocalLostAnswer(t *testing.T) {
	p := localPolicies()[0]
	for _, c := range []struct {
		err     error
		charges int
		level   float64
	}{{fmt.Errorf("%w: lost", ErrUnavailable), 2, 20}, {store.ErrLocked, 2, 20}, {store.Invalid("key", "k", "is not in the encoding"), 1, 10}} {
		inAway(t, nil, func(a *away) {
			a.leave()
			a.allow(p, "k", 10)
			a.lose(1, c.err)
			if n := a.back(); n != 1 {
				a.Errorf("%d charges", n)
			}
			time.Sleep(defaultBreakFor)
			synctest.Wait()
			if n := a.charges(); n != c.charges {
				a.Errorf("%v: %d charges", c.err, n)
			}
			a.expectLevel(p, "k", c.level)
		})
	}
}

// losing loses the answers of some charges of the key k.
type losing struct {
	store.Store
	err  error
	left atomic.Int32
}

// lose makes the database lose answers.
func (a *away) lose(n int32, err error) *losing {
	synctest.Wait()
	a.spy.mu.Lock()
	defer a.spy.mu.Unlock()
	l := &losing{Store: a.spy.Store, err: err}
	l.left.Store(n)
	a.spy.Store = l
	return l
}

func (l *losing) Do(ctx context.Context, op *store.Op) error {
	err := l.Store.Do(ctx, op)
	if op.Kind == store.Charge && op.Key == "k" && l.left.Add(-1) >= 0 {
		err = l.err
	}
	return err
}

// TestLocalManyKeys: all keys are charged, and nothing is left. One whose row is locked does not
// keep the others from it.
func TestLocalManyKeys(t *testing.T) {
	p := localPolicies()[0]
	inAway(t, nil, func(a *away) {
		a.leave()
		for i := range 499 {
			a.allow(p, fmt.Sprint(i), 1)
		}
		a.allow(p, "k", 1)
		locked := a.lose(1000, store.ErrLocked)
		if n := a.back(); n != 501 { // it is tried again once the others are charged
			a.Errorf("%d charges", n)
		}
		if _, owed := a.kept(); owed != 1 {
			a.Errorf("%d keys owe", owed)
		}
		locked.left.Store(0)
		time.Sleep(defaultBreakFor)
		synctest.Wait()
		if keys, owed := a.kept(); keys != 0 || owed != 0 || a.local.used.Load() {
			a.Errorf("%d keys are left, and %d owe", keys, owed)
		}
	})
}

// TestLocalClose: Close charges what is owed, or logs that it could not.
func TestLocalClose(t *testing.T) {
	p := localPolicies()[0]
	for _, returns := range []bool{true, false} {
		var logged bytes.Buffer
		inAway(t, &Config{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, func(a *away) {
			a.leave()
			a.allow(p, "k", 5)
			synctest.Wait()
			if returns {
				a.spy.set(nil)
			}
			began := time.Now()
			if err := errors.Join(a.Close(), a.Close()); err != nil || time.Since(began) != 0 {
				a.Error(err, time.Since(began))
			}
			if strings.Contains(logged.String(), "keys=1") == returns || a.charges() > 0 != returns {
				a.Errorf("sent %v, logged %s", a.spy.sent(), &logged)
			}
		})
	}
}
