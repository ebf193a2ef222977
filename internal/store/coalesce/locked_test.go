package coalesce

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// TestLockedRowIsSetAside: a row that another transaction has locked delays its
// neighbours only by patience. It is decided, in order of arrival, once it is free.
func TestLockedRowIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		s := newStore(f, f, f.options())
		start := time.Now()
		callers := []<-chan reply{take(t.Context(), s, query("locked", 1))}
		time.Sleep(waiting.Patience) // its lone statement finds it locked
		synctest.Wait()
		for range 4 {
			callers = append(callers, take(t.Context(), s, query("locked", 1)))
		}
		for i := range 20 {
			if r := <-take(t.Context(), s, query(fmt.Sprint(i), 1)); r.err != nil || r.Granted != 1 {
				t.Errorf("a neighbour: %+v", r)
			}
		}
		if waited := time.Since(start); waited > 2*waiting.Patience {
			t.Errorf("the neighbours waited for %v", waited)
		}
		f.set(func() { delete(f.locked, "locked") })
		for i, c := range callers {
			if r := <-c; r.err != nil || (r.Granted == 1) != (i < 3) {
				t.Errorf("request %d for the locked key: %+v", i, r)
			}
		}
		shut(s)
	})
}

// TestLockedRowTakesNoMore: a request that comes while the lane's statement for its key is
// in flight is in the next one.
func TestLockedRowTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		s := newStore(f, f, f.options())
		first := take(t.Context(), s, query("locked", 1))
		time.Sleep(waiting.Patience + waiting.Patience/2) // the lane's statement is in flight
		synctest.Wait()
		second := take(t.Context(), s, query("locked", 1))
		f.set(func() { delete(f.locked, "locked") })
		if a, b := <-first, <-second; a.Granted != 1 || b.Granted != 1 {
			t.Errorf("%+v, %+v", a, b)
		}
		shut(s)
	})
}

// TestLockedRowKeepsItsOrder: a request that queued for the key while the batch was in
// flight is decided after those of the batch.
func TestLockedRowKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := bed(t, func(o *settings) { o.Statements = 1 })
		f.set(func() { f.locked["b"] = true })
		take(t.Context(), s, query("a", 1))
		first := take(t.Context(), s, query("b", 3))
		f.open() // the batch of both is at the gate
		later := take(t.Context(), s, query("b", 2))
		f.statements()
		f.open()
		time.Sleep(waiting.Patience)
		synctest.Wait()
		close(f.gate)
		f.set(func() { delete(f.locked, "b") })
		if a, b := <-first, <-later; a.Granted != 1 || b.Granted != 0 || b.err != nil {
			t.Errorf("%+v, %+v", a, b)
		}
		shut(s)
		if got := f.statements(); slices.Contains(got, "a×1 b×1 ") || strings.Count(fmt.Sprint(got), "alone b") != 2 {
			t.Errorf("sent %q", got)
		}
	})
}

// TestLockedRowInABatch: the others of its batch are sent again without it, immediately.
func TestLockedRowInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := bed(t, nil)
		f.set(func() { f.locked["b"] = true })
		var all []<-chan reply
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, take(t.Context(), s, query(key, 1)))
		}
		close(f.gate)
		if a, c := <-all[0], <-all[2]; a.Granted != 1 || c.Granted != 1 {
			t.Errorf("%+v, %+v", a, c)
		}
		if got := f.statements(); !slices.Contains(got, "a×1 b×1 c×1 ") || !slices.Contains(got, "a×1 c×1 ") {
			t.Errorf("sent %q", got)
		}
		f.set(func() { delete(f.locked, "b") })
		if b := <-all[1]; b.Granted != 1 || b.err != nil {
			t.Errorf("%+v", b)
		}
		shut(s)
	})
}

// TestLockedRowWaitsLonger: each turn of a key waits twice as long, up to 900 ms, so
// that a row that stays locked costs few statements. Its callers time out.
func TestLockedRowWaitsLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		s := newStore(f, f, f.options())
		start := time.Now()
		r := <-take(t.Context(), s, query("locked", 1))
		if !errors.Is(r.err, store.ErrUnavailable) || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %+v", time.Since(start), r)
		}
		shut(s)
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.sent) > 14 || len(f.sent) < 8 {
			t.Errorf("%d statements: %v", len(f.sent), f.waits)
		}
		for i := 2; i < len(f.waits)-3; i++ { // the last end before the caller's time does
			if f.waits[i] != min(2*f.waits[i-1], 900*time.Millisecond) {
				t.Errorf("the waits were %v", f.waits)
			}
		}
	})
}

// TestLockedKeysTakeTurns: a key that is free again does not wait for one that is not.
func TestLockedKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["stays"], f.locked["goes"] = true, true
		s := newStore(f, f, f.options())
		stays, goes := take(t.Context(), s, query("stays", 1)), take(t.Context(), s, query("goes", 1))
		time.Sleep(200 * time.Millisecond)
		f.set(func() { delete(f.locked, "goes") })
		start := time.Now()
		if r := <-goes; r.err != nil || r.Granted != 1 || time.Since(start) > time.Second {
			t.Errorf("after %v: %+v", time.Since(start), r)
		}
		if r := <-stays; !errors.Is(r.err, store.ErrUnavailable) {
			t.Errorf("%+v", r)
		}
		shut(s)
		if got := strings.Join(f.statements(), " "); !strings.Contains(got, "goes") {
			t.Error(got)
		}
	})
}

// TestLockedRowIsJoined: while a key is in the lane, no batch has it, so that its
// neighbours wait for nothing. Its callers are in its share.
func TestLockedRowIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		o := f.options()
		o.waiting = 100
		s := newStore(f, f, o)
		first := take(t.Context(), s, query("locked", 1))
		time.Sleep(2 * waiting.Patience)
		start := time.Now()
		for range 63 {
			take(t.Context(), s, query("locked", 1))
			if r := <-take(t.Context(), s, query("other", 1e-3)); r.err != nil || r.Granted != 1 {
				t.Errorf("a neighbour: %+v", r)
			}
		}
		if r := <-take(t.Context(), s, query("locked", 1)); !errors.Is(r.err, store.ErrOverloaded) {
			t.Errorf("past the share: %+v", r)
		}
		if time.Since(start) != 0 {
			t.Errorf("the neighbours waited for %v", time.Since(start))
		}
		f.set(func() { delete(f.locked, "locked") })
		if r := <-first; r.Granted != 1 {
			t.Errorf("%+v", r)
		}
		shut(s)
	})
}
