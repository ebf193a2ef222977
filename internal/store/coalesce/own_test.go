package coalesce

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestTakeSendsItsOwn: a caller that cannot leave sends its own statement, and others send
// what has come meanwhile.
func TestTakeSendsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gate = make(chan struct{})
		o := f.options()
		o.Obeys = true
		s := newStore(f, f, o)
		first, second := take(context.Background(), s, query("a", 1)), take(context.Background(), s, query("b", 1))
		f.open()
		if r := <-first; r.Granted != 1 {
			t.Errorf("%+v", r)
		}
		f.open()
		if r := <-second; r.Granted != 1 {
			t.Errorf("%+v", r)
		}
		ctx, cancel := context.WithCancel(t.Context())
		leaves := take(ctx, s, query("c", 1))
		cancel()
		if r := <-leaves; !errors.Is(r.err, context.Canceled) {
			t.Errorf("a caller that may leave: %+v", r)
		}
		f.open()
		shut(s)
	})
}

// TestTakeLeavesADeafDriver: the timeout holds for a driver that does not end its
// statements with their context.
func TestTakeLeavesADeafDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gate, f.deaf = make(chan struct{}), true
		s := newStore(f, f, f.options())
		start := time.Now()
		if r := <-take(context.Background(), s, query("k", 1)); !errors.Is(r.err, store.ErrUnavailable) || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %+v", time.Since(start), r)
		}
		close(f.gate)
		shut(s)
	})
}

// TestTakeOutlivesAPanic: a hook that panics in the caller's own statement leaves nothing
// that later requests or Close wait for.
func TestTakeOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		o := f.options()
		o.Obeys = true
		s := newStore(f, f, o)
		func() {
			defer func() { _ = recover() }()
			_, _ = s.Take(context.Background(), query("panics", 1))
			t.Error("it did not panic")
		}()
		if r := <-take(t.Context(), s, query("k", 1)); r.Granted != 1 || s.room.Callers() != 0 {
			t.Errorf("%+v, %d wait", r, s.room.Callers())
		}
		shut(s)
	})
}
