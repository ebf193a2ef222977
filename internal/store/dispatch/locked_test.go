package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestLockedRowIsSetAside: a row that another transaction has locked delays its
// neighbours only by patience. It is decided, in order of arrival, once it is free.
func TestLockedRowIsSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		s := New(f, f.options())
		start := time.Now()
		callers := []<-chan reply{take(t.Context(), s, query("locked", 1))}
		time.Sleep(UsualLockWait) // its lone statement finds it locked
		synctest.Wait()
		for range 4 {
			callers = append(callers, take(t.Context(), s, query("locked", 1)))
		}
		for i := range 20 {
			if r := <-take(t.Context(), s, query(fmt.Sprint(i), 1)); r.err != nil || r.Granted != 1 {
				t.Errorf("a neighbour: %+v", r)
			}
		}
		if waited := time.Since(start); waited > 2*UsualLockWait {
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

// TestLockedRowTakesNoMore: a request that comes while the statement that waits for its row is
// in flight is in the next one.
func TestLockedRowTakesNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		s := New(f, f.options())
		first := take(t.Context(), s, query("locked", 1))
		time.Sleep(UsualLockWait + UsualLockWait/2) // the statement that waits for the row is in flight
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
		s, f, _ := inFlight(t, func(o *Options) { o.Statements = 1 })
		f.set(func() { f.locked["b"] = true })
		take(t.Context(), s, query("a", 1))
		first := take(t.Context(), s, query("b", 3))
		f.open() // the batch of both is at the gate
		later := take(t.Context(), s, query("b", 2))
		f.statements()
		f.open()
		time.Sleep(UsualLockWait)
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
		s, f, _ := inFlight(t, nil)
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
		s := New(f, f.options())
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

// TestLockedKeysTakeTurns: one connection of five waits for locked rows, however many there
// are. A key that is free again does not wait for one that is not.
func TestLockedKeysTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["stays"], f.locked["goes"] = true, true
		s := New(f, f.options())
		stays, goes := take(t.Context(), s, query("stays", 1)), take(t.Context(), s, query("goes", 1))
		time.Sleep(100 * time.Millisecond)
		f.set(func() { f.most = 0 })
		time.Sleep(100 * time.Millisecond)
		f.set(func() {
			if delete(f.locked, "goes"); f.most != 1 {
				t.Errorf("%d statements waited at once", f.most)
			}
		})
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

// TestLockedRowIsJoined: while a key's row is locked, no statement for several keys has the key,
// so that other keys do not wait. At most the key's share of Waiting may wait for the row.
func TestLockedRowIsJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["locked"] = true
		o := f.options()
		o.Waiting = 100
		s := New(f, o)
		first := take(t.Context(), s, query("locked", 1))
		time.Sleep(2 * UsualLockWait)
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

// TestTurnsWaitForLockedRows: a locked row delays its neighbours by UsualLockWait at most,
// though its callers are more than the connections. They are answered in order once it is
// free, and few statements were sent meanwhile.
func TestTurnsWaitForLockedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, time.Minute)
		held := charges(t.Context(), s, 20, "held")
		for i := range 100 {
			start := time.Now()
			if err := <-charge(t.Context(), s, fmt.Sprint(i)); err != nil || time.Since(start) > UsualLockWait+time.Millisecond {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		time.Sleep(3 * time.Second)
		f.set(func() {
			if n := len(f.sent); n > 120 {
				t.Errorf("%d statements", n)
			}
			if longest := slices.Max(f.waits); longest != 900*time.Millisecond {
				t.Errorf("a wait of %v", longest)
			}
			delete(f.locked, "held")
		})
		answers(t, held)
		if !s.idleNow() {
			t.Error("not idle")
		}
	})
}

// TestTurnsOfALockedRowTimeOut: nothing was consumed, and no statement is in flight.
func TestTurnsOfALockedRowTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, time.Second)
		start := time.Now()
		err := <-charge(t.Context(), s, "held")
		if !errors.Is(err, store.ErrLocked) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		f.set(func() {
			if f.abreast["held"] > 0 {
				t.Error("a statement is in flight")
			}
		})
		s.AwaitIdle()
	})
}

// TestTurnsKeepNoRowsLocked: an AllowAll that waits for a locked row holds its other rows
// for moments only: others for them do not wait. Then it is granted.
func TestTurnsKeepNoRowsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, 5*time.Second)
		answer := make(chan error)
		go func() {
			answer <- s.Do(t.Context(), all(&store.Group{Query: query1("shared")}, &store.Group{Query: query1("held")}))
		}()
		time.Sleep(2 * time.Second)
		f.set(func() {
			if longest := slices.Max(f.waits); longest > UsualLockWait {
				t.Errorf("a statement waited for %v", longest)
			}
			if n := len(f.waits); n > 15 {
				t.Errorf("%d statements", n)
			}
			delete(f.locked, "held")
		})
		freed := time.Now()
		if err := <-answer; err != nil || time.Since(freed) > probeEvery+time.Millisecond {
			t.Errorf("after %v: %v", time.Since(freed), err)
		}
		s.AwaitIdle()
	})
}

// TestTurnsOfSeveralKeys: an AllowAll that its own limit denies does not wait for a locked
// row, unless its denial begins a block.
func TestTurnsOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["shared"] = true
		s := newSerial(f, time.Second)
		for _, c := range []struct {
			denies   bool
			blockFor int64
			want     error
		}{{true, 0, nil}, {true, 1, store.ErrLocked}, {false, 0, store.ErrLocked}} {
			f.denies = c.denies
			op := all(&store.Group{Query: query1("own")}, &store.Group{Query: query1("shared")})
			op.Groups[0].BlockFor = c.blockFor
			start := time.Now()
			err := s.Do(t.Context(), op)
			if op.Allowed || !errors.Is(err, c.want) || c.want == nil && time.Since(start) > 2*UsualLockWait {
				t.Errorf("%+v: %v, %v after %v", c, op.Allowed, err, time.Since(start))
			}
			s.AwaitIdle()
		}
	})
}

// TestTurnsOfALockedRowAreShared: the callers of a locked row are a quarter of all at most.
func TestTurnsOfALockedRowAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, time.Second)
		var shed int
		for range 400 {
			select {
			case err := <-charge(t.Context(), s, "held"):
				if !errors.Is(err, store.ErrOverloaded) {
					t.Fatal(err)
				}
				shed++
			default:
			}
			time.Sleep(100 * time.Microsecond)
		}
		if shed < 140 {
			t.Errorf("%d of 400 were shed", shed)
		}
		if err := <-charge(t.Context(), s, "other"); err != nil {
			t.Error(err)
		}
		time.Sleep(2 * time.Second)
		s.AwaitIdle()
	})
}

// TestTurnsOfALockedRowThatIsLeft: what a caller has left is not sent, and does not pass
// for a free row.
func TestTurnsOfALockedRowThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		var left []<-chan error
		for range 50 {
			left = append(left, charge(ctx, s, "held"))
		}
		stays := charge(t.Context(), s, "held")
		time.Sleep(100 * time.Millisecond)
		cancel()
		for _, answer := range left {
			if err := <-answer; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		time.Sleep(time.Second)
		f.set(func() {
			if len(f.sent) > 12 {
				t.Errorf("%d statements", len(f.sent))
			}
			delete(f.locked, "held")
		})
		if err := <-stays; err != nil {
			t.Error(err)
		}
		s.AwaitIdle()
	})
}

// TestTurnsOfASettle: Settles whose key's row is locked wait for it together, in few
// statements.
func TestTurnsOfASettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["held"] = true
		s := newSerial(f, time.Minute)
		var all []<-chan error
		for i := range 50 {
			all = append(all, settle(t.Context(), s, "held", fmt.Sprint("id-", i)), charge(t.Context(), s, "held"))
		}
		time.Sleep(3 * time.Second)
		f.set(func() {
			if n := len(f.sent); n > 12 {
				t.Errorf("%d statements", n)
			}
			delete(f.locked, "held")
		})
		answers(t, all)
		s.AwaitIdle()
	})
}

// TestTurnsOfALockedReservation: a Settle whose reservation is locked delays others for the
// key by UsualLockWait at most, and has its answer once the reservation is free.
func TestTurnsOfALockedReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["id"] = true
		s := newSerial(f, time.Minute)
		settled := settle(t.Context(), s, "k", "id")
		for range 200 {
			start := time.Now()
			if err := <-charge(t.Context(), s, "k"); err != nil || time.Since(start) > UsualLockWait+2*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.set(func() { delete(f.locked, "id") })
		if err := <-settled; err != nil {
			t.Error(err)
		}
		s.AwaitIdle()
	})
}

// TestTurnsOfALockedReservationTimeOut: nothing was changed, and the error says so.
func TestTurnsOfALockedReservationTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["id"] = true
		s := newSerial(f, time.Second)
		start := time.Now()
		if err := <-settle(t.Context(), s, "k", "id"); !errors.Is(err, store.ErrLocked) || time.Since(start) > time.Second+2*UsualLockWait {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		s.AwaitIdle()
	})
}

// settle settles in the background and returns the error.
func settle(ctx context.Context, s *Dispatcher, key, id string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		err := s.Do(ctx, ending(key, id))
		answer <- err
	}()
	synctest.Wait()
	return answer
}
