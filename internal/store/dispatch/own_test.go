package dispatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// TestTakeSendsItsOwn: a caller that cannot leave sends its own statement, and others send
// what has come meanwhile.
func TestTakeSendsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gate = make(chan struct{})
		o := f.options()
		o.Obeys = true
		s := New(f, o)
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

// TestTakeIsContinued: a statement that its caller began is continued by another goroutine,
// whether the caller has left or the statement would have to wait.
func TestTakeIsContinued(t *testing.T) {
	for name, c := range map[string]struct {
		leaves, sent bool
		statements   int // of the other goroutine
	}{
		"it would wait":          {statements: 1},
		"its caller leaves":      {leaves: true, sent: true, statements: 1},
		"its caller leaves soon": {leaves: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake()
			o := f.options()
			o.Obeys = true
			s := New(f, o)
			ctx, cancel := context.WithCancel(t.Context())
			began := 0
			f.own = func(d *sending.Context) error {
				began++
				if !c.leaves {
					return store.ErrElsewhere
				}
				if c.sent && !sending.Sends(d) {
					t.Error("it may not be sent")
				}
				client, _ := net.Pipe()
				d.Watch(client)
				cancel()
				_, err := client.Read(make([]byte, 1))
				if d.Unwatch() {
					return store.ErrElsewhere
				}
				return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
			}
			if r := <-take(ctx, s, query("k", 1)); c.leaves != errors.Is(r.err, context.Canceled) || !c.leaves && r.Granted != 1 {
				t.Errorf("%s: %+v", name, r)
			}
			s.AwaitIdle()
			if began != 1 || len(f.statements()) != c.statements || s.Callers() != 0 {
				t.Errorf("%s: begun %d times, then %q", name, began, f.statements())
			}
			f.own = nil
			if r := <-take(t.Context(), s, query("k", 1)); r.Granted != 1 {
				t.Errorf("%s: afterwards %+v", name, r)
			}
			cancel()
			shut(s)
		})
	}
}

// TestTakeLeavesADeafDriver: the timeout holds for a driver that does not end its
// statements with their context.
func TestTakeLeavesADeafDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.gate, f.deaf = make(chan struct{}), true
		s := New(f, f.options())
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
		s := New(f, o)
		func() {
			defer func() { _ = recover() }()
			_, _ = takeOne(context.Background(), s, query("panics", 1))
			t.Error("it did not panic")
		}()
		if r := <-take(t.Context(), s, query("k", 1)); r.Granted != 1 || s.Callers() != 0 {
			t.Errorf("%+v, %d wait", r, s.Callers())
		}
		shut(s)
	})
}
