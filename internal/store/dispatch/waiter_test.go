package dispatch

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestWaitEndsEachInItsTime: each wait ends exactly when its own time is over.
func TestWaitEndsEachInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(newFake(), Options{Timeout: time.Second})
		var wg sync.WaitGroup
		for range 500 {
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
			wg.Go(func() {
				start := time.Now()
				w := d.waiter()
				if err := w.wait(t.Context()); !errors.Is(err, store.ErrUnavailable) || time.Since(start) != time.Second || !w.gone() {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		}
		wg.Wait()
	})
}

// TestWaitLeavesTheAnswered: a wait that was answered does not end again, and nor does the
// next one of its w before its own time.
func TestWaitLeavesTheAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(newFake(), Options{Timeout: time.Second})
		for range 3 {
			w := d.waiter()
			time.Sleep(900 * time.Millisecond)
			w.answer(nil, 1)
			if err := w.wait(t.Context()); err != nil {
				t.Error(err)
			}
			d.free(w)
		}
		w := d.waiter()
		start := time.Now()
		if err := w.wait(t.Context()); !errors.Is(err, store.ErrUnavailable) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// TestWaitEndsOnce: of an answer, the end of the caller's context and that of its time, one
// ends the wait, and an answer that came first is not lost.
func TestWaitEndsOnce(t *testing.T) {
	d := New(newFake(), Options{Timeout: time.Minute})
	for range 2_000 {
		w := d.waiter()
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan bool, 1)
		go func() {
			w.answer(nil, 1)
			answered <- !w.gone()
		}()
		go cancel()
		err := w.wait(ctx)
		if was := <-answered; was != (err == nil) || was == w.gone() || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("answered %v, and the caller got %v", was, err)
		}
	}
}
