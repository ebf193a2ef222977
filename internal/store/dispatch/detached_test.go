package dispatch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// valueKey is the key of a context's value.
type valueKey struct{}

// TestDetachedEndsInItsTime: a statement's context ends by the timeout with all contexts derived from it,
// and each of them reports that the timeout did it.
func TestDetachedEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, start := New(newFake(), Options{Timeout: time.Second}), time.Now()
		f := r.detached()
		defer f.cancel()
		derived, stop := context.WithCancel(context.WithValue(f, valueKey{}, "value"))
		defer stop()
		after := make(chan struct{})
		context.AfterFunc(f, func() { close(after) })
		if by, ok := f.Deadline(); !ok || by.Sub(start) != time.Second || f.Err() != nil || store.EndedByTimeout(derived) {
			t.Errorf("deadline %v, %v", by, f.Err())
		}
		for _, done := range []<-chan struct{}{derived.Done(), f.Done(), after} {
			<-done
		}
		for _, ctx := range []context.Context{f, derived} {
			if time.Since(start) != time.Second || ctx.Err() != context.DeadlineExceeded || !store.EndedByTimeout(ctx) {
				t.Errorf("%v after %v", ctx.Err(), time.Since(start))
			}
		}
	})
}

// TestDetachedIsCancelled: that is no timeout, and calls what waits for the end, unless it
// was stopped.
func TestDetachedIsCancelled(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			r := New(newFake(), Options{Timeout: timeout})
			f := r.detached()
			var called atomic.Int64
			context.AfterFunc(f, func() { called.Add(1) })
			stopped := context.AfterFunc(f, func() { called.Add(10) })
			if !stopped() || stopped() {
				t.Error("it was stopped not once")
			}
			f.cancel()
			f.cancel()
			<-f.Done()
			late := context.AfterFunc(f, func() { called.Add(100) })
			synctest.Wait()
			if called.Load() != 101 || late() || !errors.Is(f.Err(), context.Canceled) || store.EndedByTimeout(f) {
				t.Errorf("called %d, %v", called.Load(), f.Err())
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if r.mu.Lock(); len(r.contexts.begun) > 0 || r.contexts.armed {
				t.Error("it is still watched")
			}
			r.mu.Unlock()
		})
	}
}

// detached is detach for a test.
func (d *Dispatcher) detached() *detached {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.detach()
}

// TestGivenUpIsNoTimeout: a statement without a connection, whose last caller was told that
// nothing was sent, does not end as one that the database did not answer. A circuit breaker
// would count that.
func TestGivenUpIsNoTimeout(t *testing.T) {
	f := New(newFake(), Options{Timeout: time.Second}).detached()
	defer f.cancel()
	f.fly(new(waiter))
	f.fly(new(waiter))
	if f.giveUp() || f.Err() != nil {
		t.Error("it was given up while a caller waits for it")
	}
	if !f.giveUp() || f.Err() == nil || store.EndedByTimeout(f) || store.Sends(f) {
		t.Errorf("given up: %v, by the timeout: %v", f.Err(), store.EndedByTimeout(f))
	}
}
