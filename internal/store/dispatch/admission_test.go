package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// waiter begins a wait, for a test.
func (d *Dispatcher) waiter() *waiter {
	d.mu.Lock()
	defer d.mu.Unlock()
	op := ask(store.Charge, "k")
	return d.begin(op, keyOf(op))
}

// TestAdmissionTellsWhyItIsLate: only a database that answered nobody is away.
func TestAdmissionTellsWhyItIsLate(t *testing.T) {
	for _, c := range []struct {
		name      string
		state     state
		answers   int64 // while the request waits
		exhausted bool
		want      error
		away      bool
	}{
		{"not sent, others were answered", queued, 1, false, store.ErrOverloaded, false},
		{"not sent, nobody was answered", queued, 0, false, store.ErrUnavailable, true},
		{"in flight, others were answered", sent, 1, false, store.ErrAnswering, false},
		{"in flight, nobody was answered", sent, 0, false, store.ErrUnavailable, true},
		{"all connections are in use by others, and it may still be sent", sent, 0, true, store.ErrExhausted, false},
		{"behind those, not sent", queued, 0, true, store.ErrBusy, false},
		{"the row is locked", locked, 1, false, store.ErrLocked, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.answers, f.exhausted = 7, c.exhausted
			d := New(f, Options{Timeout: time.Second})
			w, start := d.waiter(), time.Now()
			d.mu.Lock()
			w.state = c.state
			d.mu.Unlock()
			f.set(func() { f.answers += c.answers })
			err := w.wait(t.Context())
			away := errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrLocked) && !errors.Is(err, store.ErrAnswering) && !errors.Is(err, store.ErrExhausted)
			if !errors.Is(err, c.want) || away != c.away || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("%s: %v after %v", c.name, err, time.Since(start))
			}
		})
	}
}

// TestAdmissionOfABusyProcess: what came late while goroutines wait long for their turn is no
// outage.
func TestAdmissionOfABusyProcess(t *testing.T) {
	var busy sync.WaitGroup
	var idle atomic.Bool
	for range 20 * runtime.GOMAXPROCS(0) {
		busy.Go(func() {
			for !idle.Load() {
			}
		})
	}
	defer busy.Wait()
	defer idle.Store(true)
	d := New(newSlow(), Options{Timeout: 10 * time.Millisecond})
	// A goroutine may still have its turn early, so each gets a hundred chances.
	starved := func(what string, ask func() error) {
		var err error
		for range 100 {
			if err = ask(); errors.Is(err, store.ErrStarved) {
				return
			}
		}
		t.Error(what, err)
	}
	starved("a statement:", func() error {
		d.mu.Lock()
		s := d.detach()
		d.mu.Unlock()
		<-s.Done()
		return d.timed(s, store.ErrUnavailable)
	})
	starved("a caller whose statement was sent:", func() error {
		w := d.waiter()
		d.mu.Lock()
		w.state = sent
		d.mu.Unlock()
		return w.wait(t.Context())
	})
	if err := d.waiter().wait(t.Context()); !errors.Is(err, store.ErrOverloaded) {
		t.Error("a caller whose turn did not come:", err)
	}
}

// TestAdmissionIsBusy: ErrBusy says that nothing was sent. So the statement of the last caller
// who gets it is never sent, and who shares a statement with a caller that waits on does not
// get it.
func TestAdmissionIsBusy(t *testing.T) {
	const callers = 2
	for _, c := range []struct {
		name string
		sent bool
		want [callers]error
	}{
		{"no connection came", false, [...]error{store.ErrExhausted, store.ErrBusy}},
		{"one came", true, [...]error{store.ErrExhausted, store.ErrExhausted}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			f.exhausted = true
			d := New(f, Options{Timeout: time.Second})
			var waiters [callers]*waiter
			for i := range waiters {
				waiters[i] = d.waiter()
				time.Sleep(time.Millisecond)
			}
			ctx := d.statement()
			defer ctx.Cancel()
			d.mu.Lock()
			for _, w := range waiters {
				ctx.carry(w)
			}
			d.mu.Unlock()
			if c.sent && (!sending.Sends(ctx) || sending.NotSent(ctx)) {
				t.Errorf("%s: it was not sent", c.name)
			}
			for i, w := range waiters {
				if err := w.wait(t.Context()); !errors.Is(err, c.want[i]) {
					t.Errorf("%s: caller %d: %v", c.name, i, err)
				}
			}
			if sending.Sends(ctx) != c.sent || sending.NotSent(ctx) == c.sent {
				t.Errorf("%s: sends %v, not sent %v, %v", c.name, sending.Sends(ctx), sending.NotSent(ctx), ctx.Err())
			}
		})
	}
}

// statement is detach for a test.
func (d *Dispatcher) statement() *statement {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.detach()
}

// TestAdmissionBounds: at most Waiting callers wait, and a quarter of them for one key; 64 in any case.
func TestAdmissionBounds(t *testing.T) {
	for _, c := range []struct{ most, share int }{{1, 1}, {64, 64}, {100, 64}, {16_384, 4096}} {
		op := func(key int) *store.Op { return ask(store.Charge, fmt.Sprint(key)) }
		d := New(newFake(), Options{Waiting: c.most, Connections: 2})
		d.serial.running = d.serial.most // start none
		admit := func(op *store.Op) error {
			d.mu.Lock()
			defer d.mu.Unlock()
			err := d.admit(keyOf(op), op)
			if err == nil {
				d.enqueue(d.begin(op, keyOf(op)))
			}
			return err
		}
		for i := range c.share {
			if err := admit(op(0)); err != nil {
				t.Fatalf("caller %d of %d for a key: %v", i, c.share, err)
			}
		}
		if err := admit(op(0)); !errors.Is(err, store.ErrOverloaded) || d.Callers() != c.share {
			t.Errorf("past the share of %d: %v", c.share, err)
		}
		for i := c.share; i < c.most; i++ {
			if err := admit(op(i)); err != nil {
				t.Fatalf("caller %d of %d: %v", i, c.most, err)
			}
		}
		if err := admit(op(c.most)); !errors.Is(err, store.ErrOverloaded) || d.Callers() != c.most {
			t.Errorf("one too many of %d: %v", c.most, err)
		}
	}
	f := newFake()
	f.refusal = errors.New("the breaker is open")
	if err := New(f, Options{Waiting: 10}).Do(t.Context(), ask(store.Charge, "k")); err != f.refusal {
		t.Error(err)
	}
}
