package lone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// TestTurnsWaitForLockedRows: a locked row delays its neighbours by Patience at most,
// though its callers are more than the connections. They are answered in order once it is
// free, and few statements were sent meanwhile.
func TestTurnsWaitForLockedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, time.Minute)
		var held []<-chan error
		for range 20 {
			held = append(held, charge(t.Context(), s, "held"))
		}
		for i := range 100 {
			start := time.Now()
			if err := <-charge(t.Context(), s, fmt.Sprint(i)); err != nil || time.Since(start) > waiting.Patience+time.Millisecond {
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
		for _, answer := range held {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		if !s.idleNow() {
			t.Error("not idle")
		}
	})
}

// TestTurnsOfALockedRowTimeOut: nothing was consumed, and no statement is in flight.
func TestTurnsOfALockedRowTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, time.Second)
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
		s.lane.AwaitIdle()
	})
}

// TestTurnsKeepNoRowsLocked: an AllowAll that waits for a locked row holds its other rows
// for moments only: others for them do not wait. Then it is granted.
func TestTurnsKeepNoRowsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, 5*time.Second)
		answer := make(chan error)
		go func() {
			answer <- s.Do(t.Context(), all(&store.Group{Query: query("shared")}, &store.Group{Query: query("held")}))
		}()
		time.Sleep(2 * time.Second)
		f.set(func() {
			if longest := slices.Max(f.waits); longest > waiting.Patience {
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
		s.lane.AwaitIdle()
	})
}

// TestTurnsOfSeveralKeys: an AllowAll that its own limit denies does not wait for a locked
// row, unless its denial begins a block.
func TestTurnsOfSeveralKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["shared"] = true
		s := newStore(f, time.Second)
		for _, c := range []struct {
			denies   bool
			blockFor int64
			want     error
		}{{true, 0, nil}, {true, 1, store.ErrLocked}, {false, 0, store.ErrLocked}} {
			f.denies = c.denies
			op := all(&store.Group{Query: query("own")}, &store.Group{Query: query("shared")})
			op.Groups[0].BlockFor = c.blockFor
			start := time.Now()
			err := s.Do(t.Context(), op)
			if op.Allowed || !errors.Is(err, c.want) || c.want == nil && time.Since(start) > 2*waiting.Patience {
				t.Errorf("%+v: %v, %v after %v", c, op.Allowed, err, time.Since(start))
			}
			s.lane.AwaitIdle()
		}
	})
}

// TestTurnsOfALockedRowAreShared: the callers of a locked row are a quarter of all at most.
func TestTurnsOfALockedRowAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, time.Second)
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
		s.lane.AwaitIdle()
	})
}

// TestTurnsOfALockedRowThatIsLeft: what a caller has left is not sent, and does not pass
// for a free row.
func TestTurnsOfALockedRowThatIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, time.Minute)
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
		s.lane.AwaitIdle()
		s.AwaitIdle()
	})
}

// TestTurnsOfASettle: a Settle whose key's row is locked waits in the lane with the others
// for it, so that many are few statements.
func TestTurnsOfASettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, time.Minute)
		var answers []<-chan error
		for i := range 50 {
			answers = append(answers, settle(t.Context(), s, "held", fmt.Sprint("id-", i)), charge(t.Context(), s, "held"))
		}
		time.Sleep(3 * time.Second)
		f.set(func() {
			if n := len(f.sent); n > 12 {
				t.Errorf("%d statements", n)
			}
			delete(f.locked, "held")
		})
		for _, answer := range answers {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		s.lane.AwaitIdle()
		s.AwaitIdle()
	})
}

// TestTurnsOfALockedReservation: a Settle whose reservation is locked delays others for the
// key by Patience at most, and has its answer once the reservation is free.
func TestTurnsOfALockedReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["id"] = true
		s := newStore(f, time.Minute)
		settled := settle(t.Context(), s, "k", "id")
		for range 200 {
			start := time.Now()
			if err := <-charge(t.Context(), s, "k"); err != nil || time.Since(start) > waiting.Patience+2*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(start), err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		f.set(func() { delete(f.locked, "id") })
		if err := <-settled; err != nil {
			t.Error(err)
		}
		s.lane.AwaitIdle()
		s.AwaitIdle()
	})
}

// TestTurnsOfALockedReservationTimeOut: nothing was changed, and the error says so.
func TestTurnsOfALockedReservationTimeOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["id"] = true
		s := newStore(f, time.Second)
		start := time.Now()
		if err := <-settle(t.Context(), s, "k", "id"); !errors.Is(err, store.ErrLocked) || time.Since(start) > time.Second+2*waiting.Patience {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		s.lane.AwaitIdle()
	})
}

// settle settles in the background and returns the error.
func settle(ctx context.Context, s *Store, key, id string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		err := s.Do(ctx, ending(key, id))
		answer <- err
	}()
	synctest.Wait()
	return answer
}
