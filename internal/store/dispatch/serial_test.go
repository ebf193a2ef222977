package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// TestTurns: the keys take turns, so that a crowd of requests for one does not delay another,
// and at most two statements for a key are in flight.
func TestTurns(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		hot := charges(t.Context(), s, 100, "hot")
		start := time.Now()
		if err := <-charge(t.Context(), s, "other"); err != nil || time.Since(start) > time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		answers(t, hot)
		if f.most != 3 || !s.idleNow() {
			t.Errorf("%d statements at once; %d running, flows %v", f.most, s.serial.running, s.serial.keys)
		}
	})
}

// idleNow reports whether s keeps nothing.
func (s *Dispatcher) idleNow() bool {
	s.AwaitIdle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.serial.keys) == 0 && len(s.serial.ready) == 0
}

// TestTurnsOfOthersFirst: a second statement for a key does not take the place of another
// key's.
func TestTurnsOfOthersFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		s := New(f, serialOptions(2, 1, time.Minute))
		hot := charges(t.Context(), s, 100, "hot")
		for i := range 10 {
			start := time.Now()
			if err := <-charge(t.Context(), s, fmt.Sprint(i)); err != nil || time.Since(start) > 2*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		answers(t, hot)
		s.AwaitIdle()
	})
}

// TestTurnsAreBounded: no more statements are in flight than allowed, reads of one key
// among them.
func TestTurnsAreBounded(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if err := s.Do(t.Context(), ask(store.Get, "k")); err != nil {
					t.Error(err)
				}
				if err := s.Do(t.Context(), ending(fmt.Sprint(i), "id")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if f.most != 4 {
			t.Errorf("%d statements at once", f.most)
		}
	})
}

// TestTurnsLeave: a caller that leaves goes immediately. Its statement is not cancelled, but not
// sent either if it still waits.
func TestTurnsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.took = time.Second
		s := newSerial(f, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan error
		for range 3 {
			all = append(all, charge(ctx, s, "k"))
		}
		start := time.Now()
		cancel()
		for _, answer := range all {
			if err := <-answer; !errors.Is(err, context.Canceled) || time.Since(start) != 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		}
		s.AwaitIdle()
		if f.answers != 2 || len(f.sent) != 2 {
			t.Errorf("sent %q, %d answered", f.sent, f.answers)
		}
	})
}

// TestTurnsEndAtClose: nothing is sent after Close, and Close waits for what was sent.
func TestTurnsEndAtClose(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		early := charge(t.Context(), s, "k")
		if s.Close(nil) {
			t.Error("closed while a statement was in flight")
		}
		late := charge(t.Context(), s, "k")
		s.AwaitIdle()
		if a, b := <-early, <-late; a != nil || b != nil || !s.Close(nil) {
			t.Errorf("%v, %v", a, b)
		}
		if err := <-charge(t.Context(), s, "k"); !errors.Is(err, store.ErrClosed) || len(f.sent) != 2 || s.Callers() != 0 {
			t.Errorf("%v, sent %q", err, f.sent)
		}
	})
}

// TestTurnsKnownMeanwhile: a request whose answer comes to be known while it waits is not
// sent.
func TestTurnsKnownMeanwhile(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		first, second := charge(t.Context(), s, "k"), charge(t.Context(), s, "k")
		var known atomic.Bool
		q := ask(store.Take, "k")
		q.Known = known.Load
		answer := make(chan error)
		go func() {
			err := s.Do(t.Context(), q)
			answer <- err
		}()
		synctest.Wait()
		known.Store(true)
		if err := <-answer; err != store.ErrKnown || len(f.sent) != 2 {
			t.Errorf("%v, sent %q", err, f.sent)
		}
		<-first
		<-second
		s.AwaitIdle()
	})
}

// TestTurnsGrantedTooLate: what is granted after its caller has left is told.
func TestTurnsGrantedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.took = time.Second
		s := newSerial(f, time.Minute)
		op := func() *store.Op {
			return all(&store.Group{Query: query1("own")}, &store.Group{Query: query1("shared")})
		}
		var told atomic.Int64
		late, again := op(), op()
		late.Late = func() { told.Add(1) }
		again.Late = late.Late
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := s.Do(ctx, late); !errors.Is(err, context.DeadlineExceeded) || told.Load() != 0 {
			t.Error(err)
		}
		s.AwaitIdle()
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
		if err := s.Do(t.Context(), again); !again.Allowed || err != nil || told.Load() != 1 {
			t.Errorf("%v, %v, told %d times", again.Allowed, err, told.Load())
		}
		s.AwaitIdle()
	})
}

// TestTurnsEndWithoutATimeout: without a timeout, a statement whose caller has left ends a
// little later, and frees its connection.
func TestTurnsEndWithoutATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.took = -1
		s := newSerial(f, 0)
		ctx, cancel := context.WithCancel(t.Context())
		answer := charge(ctx, s, "k")
		start := time.Now()
		cancel()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s.AwaitIdle(); time.Since(start) != grace {
			t.Errorf("after %v", time.Since(start))
		}
	})
}

// TestTurnsTellWhy: a request that was not sent while others were answered met an
// overload. If the database answered nobody, it is away.
func TestTurnsTellWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.took = 600 * time.Millisecond
		s := newSerial(f, time.Second)
		all := charges(t.Context(), s, 6, "slow")
		for i, answer := range all {
			err := <-answer
			switch {
			case i < 2 && err != nil,
				i >= 2 && i < 4 && !errors.Is(err, store.ErrAnswering), // in flight
				i >= 4 && !(errors.Is(err, store.ErrOverloaded) && errors.Is(err, context.DeadlineExceeded)):
				t.Errorf("request %d: %v", i, err)
			}
		}
		s.AwaitIdle()

		f.took = -1
		all = nil
		all = append(all, charges(t.Context(), s, 6, "away")...)
		for i, answer := range all {
			if err := <-answer; !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrAnswering) {
				t.Errorf("request %d: %v", i, err)
			}
		}
		s.AwaitIdle()
	})
}

// TestTurnsAreShared: of the callers that may wait, a quarter may wait for one key.
func TestTurnsAreShared(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		f.took = time.Second
		var all []<-chan error
		shed := 0
		for range 400 {
			a := charge(t.Context(), s, "hot")
			select {
			case err := <-a:
				if !errors.Is(err, store.ErrOverloaded) {
					t.Fatal(err)
				}
				shed++
			default:
				all = append(all, a)
			}
		}
		if len(all) != 252 || shed != 148 { // 250 wait behind the two in flight
			t.Errorf("%d wait, %d were shed", len(all), shed)
		}
		if err := <-charge(t.Context(), s, "other"); err != nil {
			t.Error(err)
		}
		s.AwaitIdle()
	})
}

// TestTurnsOfAContendedKey: requests for a contended key and one other key each have the turns of one
// key.
func TestTurnsOfAContendedKey(t *testing.T) {
	inShared(t, 0, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				op := all(&store.Group{Query: query1(fmt.Sprint("token-", i)), Index: 1}, &store.Group{Query: query1("client"), Contended: true})
				if err := s.Do(t.Context(), op); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if err := <-charge(t.Context(), s, "other"); err != nil || time.Since(start) > 2*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		wg.Wait()
		s.AwaitIdle()
		if f.abreast["client"] != 0 || !s.idleNow() {
			t.Error("not idle")
		}
	})
}

// TestTurnsOfTheSecond: the second request for a key has the key's turn once the first has
// its answer, however many other keys come.
func TestTurnsOfTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		s := New(f, serialOptions(1, 1, time.Second))
		busy := charge(t.Context(), s, "busy")
		first, second := charge(t.Context(), s, "pair"), charge(t.Context(), s, "pair")
		ctx, stop := context.WithCancel(t.Context())
		var others sync.WaitGroup
		others.Go(func() {
			for i := 0; ctx.Err() == nil; i++ { // more than there is time for
				others.Go(func() { _ = s.Do(t.Context(), ask(store.Charge, fmt.Sprint(i))) })
				time.Sleep(900 * time.Microsecond)
			}
		})
		for _, answer := range []<-chan error{busy, first, second} {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		stop()
		others.Wait()
		s.AwaitIdle()
	})
}
