package dispatch

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// behind has one request in flight, and one for each key behind it that share the next
// transaction.
func behind(t *testing.T, s *Dispatcher, keys ...string) (first <-chan error, all map[string]<-chan error) {
	first, all = charge(t.Context(), s, "busy"), map[string]<-chan error{}
	for _, k := range keys {
		all[k] = charge(t.Context(), s, k)
	}
	return first, all
}

// TestShareThatFails: what becomes of the requests of a transaction if one fails, or all do.
func TestShareThatFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*fake)
		fails  string // the keys whose requests fail
		want   error
		sent   []string // after the one that was in flight
	}{
		{"a bad one has the error, and the others are decided alone, each once", func(f *fake) { f.bad["b"] = true }, "b", errBad, []string{"[a b c]", "[a]", "[b]", "[c]"}},
		{"a lost answer is the answer of all, and none is sent again", func(f *fake) { f.lost = io.ErrUnexpectedEOF }, "abc", io.ErrUnexpectedEOF, []string{"[a b c]"}},
		{"one that needs a second statement is sent alone, and the others are not", func(f *fake) { f.again["b"] = true }, "", nil, []string{"[a b c]", "[b]"}},
		{"if nothing can be sent together, all are sent alone", func(f *fake) { f.lost = store.ErrAlone }, "", nil, []string{"[a b c]", "[a]", "[b]", "[c]"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newSlow()
			c.change(f)
			s := newSharing(f, 1, time.Minute)
			first, all := behind(t, s, "a", "b", "c")
			for k, answer := range all {
				if err := <-answer; strings.Contains(c.fails, k) != (err != nil) || err != nil && !errors.Is(err, c.want) {
					t.Errorf("%s: %s: %v", c.name, k, err)
				}
			}
			if err := <-first; err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			s.AwaitIdle()
			if slices.Sort(f.sent[2:]); !slices.Equal(f.sent[1:], c.sent) || !s.idleNow() {
				t.Errorf("%s: sent %q, want %q", c.name, f.sent[1:], c.sent)
			}
		})
	}
}

// TestShareWithALockedOne: a locked row delays the others of its transaction by UsualLockWait, and
// its key is set aside.
func TestShareWithALockedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.locked["b"] = true
		s := newSharing(f, 1, time.Minute)
		first, all := behind(t, s, "a", "b", "c", "d")
		start := time.Now()
		for k, answer := range all {
			if k != "b" {
				if err := <-answer; err != nil || time.Since(start) > UsualLockWait+10*time.Millisecond {
					t.Errorf("%s after %v: %v", k, time.Since(start), err)
				}
			}
		}
		<-first
		f.set(func() {
			if n := len(s.locked.keys); n != 1 || slices.Contains(f.waits[2:5], 0) {
				t.Errorf("%d set aside, waits %v", n, f.waits)
			}
			delete(f.locked, "b")
		})
		if err := <-all["b"]; err != nil {
			t.Error(err)
		}
		s.AwaitIdle()
	})
}

// TestShareALockedKey: all requests for a locked key wait apart, in the order of
// arrival.
func TestShareALockedKey(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var all sync.WaitGroup
		var order []int // in which they are sent once the key is free
		for i := range 90 {
			all.Go(func() {
				q := ask(store.Take, "k")
				q.Known = func() bool {
					f.set(func() {
						if !f.locked["k"] {
							order = append(order, i)
						}
					})
					return false
				}
				if err := s.Do(t.Context(), q); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		f.set(func() { f.locked["k"] = true })
		time.Sleep(time.Second)
		f.set(func() {
			if len(f.sent) > 10 || len(s.locked.keys[keyOf(ask(store.Take, "k"))].waiters) != 90 {
				t.Errorf("sent %q, %d set aside", f.sent, len(s.locked.keys[keyOf(ask(store.Take, "k"))].waiters))
			}
			delete(f.locked, "k")
			order = nil
		})
		all.Wait()
		s.AwaitIdle()
		if !slices.IsSorted(order) || len(order) < 89 || !s.idleNow() {
			t.Errorf("sent in the order %v", order)
		}
	})
}

// TestShareThatLeave: callers that left are not sent. A transaction in flight goes on for
// those that stay, and callers that leave it hear of what they were granted too late.
func TestShareThatLeave(t *testing.T) {
	for _, timeout := range []time.Duration{time.Minute, 0} {
		synctest.Test(t, func(t *testing.T) {
			f := newSlow()
			f.took = 3 * time.Second
			s := newSharing(f, 1, timeout)
			var told atomic.Int64
			take := func(ctx context.Context, key string) <-chan error {
				answer := make(chan error, 1)
				go func() {
					q := ask(store.Take, key)
					q.Late = func() { told.Add(1) }
					err := s.Do(ctx, q)
					answer <- err
				}()
				synctest.Wait()
				return answer
			}
			first := charge(t.Context(), s, "busy")
			early, leaveEarly := context.WithCancel(t.Context())
			late, leaveLate := context.WithCancel(t.Context())
			gone, leaves, stays := take(early, "a"), take(late, "b"), take(t.Context(), "c")
			leaveEarly()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			if err := <-first; err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			leaveLate()
			if err := <-leaves; !errors.Is(err, context.Canceled) || told.Load() != 0 {
				t.Errorf("%v, told %d times", err, told.Load())
			}
			if err := <-stays; err != nil {
				t.Errorf("timeout %v: %v", timeout, err)
			}
			s.AwaitIdle()
			if want := []string{"[busy]", "[b c]"}; !slices.Equal(f.sent, want) || told.Load() != 1 {
				t.Errorf("sent %q, want %q; told %d times", f.sent, want, told.Load())
			}
		})
	}
}

// TestShareThatAllLeave: without a timeout, a transaction that all callers have left ends.
func TestShareThatAllLeave(t *testing.T) {
	inShared(t, 1, 0, func(t *testing.T, f *fake, s *Dispatcher) {
		ctx, cancel := context.WithCancel(t.Context())
		first := charge(t.Context(), s, "busy")
		f.set(func() { f.took = -1 })
		for _, k := range []string{"a", "b", "c"} {
			charge(ctx, s, k)
		}
		<-first
		synctest.Wait()
		cancel()
		start := time.Now()
		s.AwaitIdle()
		if took := time.Since(start); took != grace || len(f.sent) != 2 {
			t.Errorf("sent %q; ended after %v", f.sent, took)
		}
	})
}

// TestShareKnown: a request whose answer comes to be known while it waits is not sent.
func TestShareKnown(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		first, all := behind(t, s, "a", "c")
		q := ask(store.Take, "b")
		q.Known = func() bool { return true }
		answer := make(chan error)
		go func() {
			err := s.Do(t.Context(), q)
			answer <- err
		}()
		if err := <-answer; err != store.ErrKnown {
			t.Error(err)
		}
		for _, answer := range all {
			<-answer
		}
		<-first
		if want := []string{"[busy]", "[a c]"}; !slices.Equal(f.sent, want) {
			t.Errorf("sent %q, want %q", f.sent, want)
		}
	})
}

// TestShareThatLeaveLate: a caller that leaves while its transaction is made ready is not sent.
func TestShareThatLeaveLate(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		first := charge(t.Context(), s, "busy")
		ctx, cancel := context.WithCancel(t.Context())
		leaves := make(chan (<-chan error), 1)
		op, stays := ask(store.Take, "a"), make(chan error)
		op.Known = func() bool {
			cancel()
			if err := <-<-leaves; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return false
		}
		go func() { stays <- s.Do(t.Context(), op) }()
		synctest.Wait()
		leaves <- charge(ctx, s, "b")
		if a, b := <-first, <-stays; a != nil || b != nil {
			t.Errorf("%v, %v", a, b)
		}
		if want := []string{"[busy]", "[a]"}; !slices.Equal(f.sent, want) {
			t.Errorf("sent %q, want %q", f.sent, want)
		}
		shut(s)
	})
}

// TestShareRows: a request learns how many requests its transaction decided, without those
// that were sent again.
func TestShareRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		f.again = map[string]bool{"c": true}
		s := newSharing(f, 1, time.Minute)
		keys := []string{"busy", "a", "b", "c", "d"}
		queries, answers := map[string]*store.Op{}, make(chan error, len(keys))
		for _, k := range keys {
			q := ask(store.Charge, k)
			queries[k] = q
			go func() { answers <- s.Do(t.Context(), q) }()
			synctest.Wait()
		}
		for range keys {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		for k, want := range map[string]int{"busy": 1, "a": 3, "b": 3, "c": 1, "d": 3} {
			if queries[k].Rows != want {
				t.Errorf("%s: %d rows, want %d; sent %q", k, queries[k].Rows, want, f.sent)
			}
		}
		end := ending("e", "1")
		if err := s.Do(t.Context(), end); err != nil || end.Rows != 1 {
			t.Errorf("%v, %d rows", err, end.Rows)
		}
		reset := ask(store.Reset, "a")
		if err := s.Do(t.Context(), reset); err != nil || reset.Rows != 1 {
			t.Errorf("%v, %d rows", err, reset.Rows)
		}
	})
}
