package dispatch

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// answers waits for the answers, and fails the test for an error.
func answers(t *testing.T, all []<-chan error) {
	t.Helper()
	for i, answer := range all {
		if err := <-answer; err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

// TestShareKey: the requests for one key that wait for its row share transactions, at most
// two at a time, in the order of arrival.
func TestShareKey(t *testing.T) {
	inShared(t, 4, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		all := charges(t.Context(), s, 100, "k")
		answers(t, all)
		s.AwaitIdle()
		sum := 0
		for _, sent := range f.sent {
			sum += len(strings.Fields(sent))
		}
		if len(f.sent) != 4 || sum != 100 || f.most != 2 || !s.idleNow() {
			t.Errorf("sent %q, %d at once", f.sent, f.most)
		}
	})
}

// TestShareKeyInOrder: the requests of a key in one transaction are in the order of arrival,
// and no transaction has more than keep the row locked for moments.
func TestShareKeyInOrder(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var mu sync.Mutex
		var order []int
		for i := range 200 {
			go func() {
				q := ask(store.Take, "k")
				q.Known = func() bool {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
					return false
				}
				if err := s.Do(t.Context(), q); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		s.AwaitIdle()
		if !slices.IsSorted(order) || len(order) != 200 {
			t.Errorf("sent in the order %v", order)
		}
		for _, sent := range f.sent {
			if n := len(strings.Fields(sent)); n > ofOneKey {
				t.Errorf("%d requests in a transaction", n)
			}
		}
	})
}

// TestShareNothing: requests share nothing while all that wait can soon be in flight.
func TestShareNothing(t *testing.T) {
	inShared(t, 4, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var all []<-chan error
		for i := range 11 { // 4 are in flight, and fewer than 8 wait
			all = append(all, charge(t.Context(), s, fmt.Sprint(i)))
		}
		answers(t, all)
		all = nil
		all = append(all, charges(t.Context(), s, 3, "k")...) // 2 are in flight
		answers(t, all)
		for range 11 {
			go func() { _ = s.Do(t.Context(), ask(store.Get, "k")) }()
			synctest.Wait()
		}
		s.AwaitIdle()
		for _, sent := range f.sent {
			if len(strings.Fields(sent)) > 1 {
				t.Errorf("a transaction for %s", sent)
			}
		}
		if len(f.sent) != 25 {
			t.Errorf("sent %q", f.sent)
		}
	})
}

// TestShareInLockOrder: a transaction locks its rows in the order of an AllowAll.
func TestShareInLockOrder(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		all := []<-chan error{charge(t.Context(), s, "busy")}
		for _, c := range []struct {
			a           algorithm.Name
			policy, key string
		}{
			{algorithm.TokenBucket, "q", "5"}, {algorithm.TokenBucket, "p", "é4"}, {algorithm.TokenBucket, "p", "Z2"},
			{algorithm.SlidingWindowLog, "a", "7"}, {algorithm.LeakyBucket, "z", "1"}, {algorithm.TokenBucket, "p", "a3"},
			{algorithm.FixedWindow, "a", "6"},
		} {
			answer := make(chan error, 1)
			go func() {
				q := ask(store.Refund, c.key)
				q.Algorithm, q.Policy = c.a, c.policy
				err := s.Do(t.Context(), q)
				answer <- err
			}()
			synctest.Wait()
			all = append(all, answer)
		}
		answers(t, all)
		if want := []string{"[busy]", "[1 Z2 a3 é4 5 6 7]"}; !slices.Equal(f.sent, want) {
			t.Errorf("sent %q, want %q", f.sent, want)
		}
	})
}

// TestShareTurns: a flood of one key shares no transaction with other keys, which would wait
// for its row, and does not keep them out.
func TestShareTurns(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		all := []<-chan error{charge(t.Context(), s, "busy"), charge(t.Context(), s, "other")}
		all = append(all, charges(t.Context(), s, 300, "flood")...)
		for i := range 40 {
			all = append(all, charge(t.Context(), s, fmt.Sprint("late-", i)))
		}
		all = append(all, charges(t.Context(), s, ofSharedKey, "late-41")...) // few are no flood
		answers(t, all)
		others := strings.Fields(f.sent[1])
		if len(others) != 1+40+ofSharedKey || strings.Contains(f.sent[1], "flood") {
			t.Errorf("the others were sent in %s", f.sent[1])
		}
		if n := len(strings.Fields(f.sent[2])); n != ofOneKey || len(f.sent) > 8 {
			t.Errorf("then %d of the flood; %d transactions", n, len(f.sent))
		}
	})
}

// TestShareWithDenials: requests that a denial would answer share a transaction once others
// were granted, and each is sent alone after a denial: that answers those behind it.
func TestShareWithDenials(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		known := func() bool { return false }
		take := func(n int) {
			var all sync.WaitGroup
			for range n {
				all.Go(func() {
					q := ask(store.Take, "k")
					q.Known = known
					if err := s.Do(t.Context(), q); err != nil {
						t.Error(err)
					}
				})
				synctest.Wait()
			}
			all.Wait()
			s.AwaitIdle()
		}
		sizes := func() (all []int) {
			for _, sent := range f.sent {
				all = append(all, len(strings.Fields(sent)))
			}
			f.sent = nil
			return all
		}
		take(200)
		if got := sizes(); !slices.Equal(got, []int{1, 2, 4, 8, 16, 32, 64, 64, 9}) {
			t.Errorf("granted: %v", got)
		}
		f.denied = map[string]bool{"k": true}
		take(20)
		if got := sizes(); slices.Max(got) != 1 {
			t.Errorf("denied: %v", got)
		}
		known = nil
		take(20)
		if got := sizes(); slices.Max(got) != 19 {
			t.Errorf("without a memory of denials: %v", got)
		}
	})
}

// TestShareATurn: while other keys wait, a flood has few requests in each turn.
func TestShareATurn(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		all := []<-chan error{charge(t.Context(), s, "busy")}
		for _, k := range []string{"a", "b"} {
			all = append(all, charges(t.Context(), s, 40, k)...)
		}
		answers(t, all)
		var turns []string
		for _, sent := range f.sent {
			keys := strings.Fields(strings.Trim(sent, "[]"))
			turns = append(turns, fmt.Sprint(keys[0], len(keys)))
		}
		want := []string{"busy1", "a16", "b16", "a16", "b16", "a8", "b8"}
		if !slices.Equal(turns, want) {
			t.Errorf("sent %q, want %q", turns, want)
		}
	})
}

// TestSharePart: how many of the requests that wait a transaction has.
func TestSharePart(t *testing.T) {
	for _, c := range []struct {
		most, running, inFlight, waiting, others int
		reads                                    bool
		want                                     int
	}{
		{4, 1, 0, 1, 0, false, 1},
		{4, 2, 0, 2, 0, false, 1}, // two may be in flight for a key
		{4, 1, 1, 2, 0, false, 2}, // one is
		{2, 2, 0, 2, 0, false, 2}, // no other goroutine sends
		{4, 1, 0, 7, 0, false, 4}, // the half
		{4, 1, 1, 70, 0, false, 64},
		{4, 4, 0, 70, 1, false, 16},
		{4, 4, 0, 1, 6, false, 1}, // seven keys of which four may be in flight
		{4, 4, 0, 1, 7, false, 2},
		{4, 4, 0, 1, 99, false, 25},
		{1, 1, 0, 1, 500, false, 100},
		{4, 4, 0, 7, 0, true, 1},
		{4, 4, 0, 8, 0, true, 2},
		{4, 4, 0, 400, 0, true, 64},
		{4, 4, 0, 80, 8, true, 22},
	} {
		f := newSlow()
		s := newSharing(f, c.most, time.Minute)
		s.serial.running = s.serial.most // start none
		add := func(key string) {
			k := keyOf(ask(store.Charge, key))
			k.reads = c.reads
			s.enqueue(&waiter{request: request{op: ask(store.Charge, key), key: k}})
		}
		for range c.waiting {
			add("k")
		}
		k := keyOf(ask(store.Charge, "k"))
		k.reads = c.reads
		s.serial.keys[k].inFlight = c.inFlight
		for i := range c.others {
			add(fmt.Sprint("other-", i))
		}
		if c.inFlight > 0 {
			s.serial.ready, s.serial.overlaps = nil, s.serial.ready
		}
		s.serial.running = c.running
		var b together
		if s.next(&b); len(b.waiters) != c.want {
			t.Errorf("%+v: %d", c, len(b.waiters))
		}
	}
}

// TestShareReads: reads share transactions among themselves, and those of one key too.
func TestShareReads(t *testing.T) {
	inShared(t, 2, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		var wg sync.WaitGroup
		for i := range 202 {
			wg.Go(func() {
				if err := s.Do(t.Context(), ask(store.Get, fmt.Sprint("r", i%3))); err != nil {
					t.Error(err)
				}
			})
			if i%10 == 0 {
				wg.Go(func() { _ = s.Do(t.Context(), ask(store.Charge, fmt.Sprint("w", i))) })
			}
			synctest.Wait()
		}
		wg.Wait()
		s.AwaitIdle()
		for _, sent := range f.sent {
			if strings.Contains(sent, "r") && strings.Contains(sent, "w") {
				t.Errorf("a transaction for %s", sent)
			}
		}
		if len(f.sent) > 30 || s.serial.reads != 0 || !s.idleNow() {
			t.Errorf("%d transactions; %d reads wait", len(f.sent), s.serial.reads)
		}
	})
}

// TestShareNot: requests of another durability, with several statements or whose key is not
// known share no transaction.
func TestShareNot(t *testing.T) {
	inShared(t, 1, time.Minute, func(t *testing.T, f *fake, s *Dispatcher) {
		all := []<-chan error{charge(t.Context(), s, "busy")}
		send := func(f func() error) {
			answer := make(chan error, 1)
			go func() { answer <- f() }()
			synctest.Wait()
			all = append(all, answer)
		}
		for i := range 3 {
			for _, commit := range []store.Commit{store.Relaxed, store.Durable} {
				send(func() error {
					q := ask(store.Charge, fmt.Sprintf("%v-%d", commit, i))
					q.Commit = commit
					err := s.Do(t.Context(), q)
					return err
				})
			}
			send(func() error {
				q := ending(fmt.Sprint("key-", i), fmt.Sprint("id-", i))
				q.Commit = store.AsSet
				return s.Do(t.Context(), q)
			})
			send(func() error { return s.Do(t.Context(), ask(store.Reset, fmt.Sprint("reset-", i))) })
			send(func() error {
				return s.Do(t.Context(), &store.Op{Kind: store.TakeAll, Groups: []*store.Group{{Query: query1(fmt.Sprint("all-", i))}}})
			})
		}
		answers(t, all)
		slices.Sort(f.sent)
		want := "[all-0] [all-1] [all-2] [busy] [key-0 key-1 key-2] [off-0 off-1 off-2] [on-0 on-1 on-2] [reset-0] [reset-1] [reset-2]"
		if got := strings.Join(f.sent, " "); got != want {
			t.Errorf("sent %s", got)
		}
	})
}

// TestShareTrustsGrantsOnly: only what was granted lets more requests share that a denial
// would answer.
func TestShareTrustsGrantsOnly(t *testing.T) {
	for _, c := range []struct {
		outcome store.Outcome
		err     error
		want    int
	}{
		{store.Outcome{}, nil, 3}, {store.Outcome{Decided: true, Granted: 1}, nil, 4}, {store.Outcome{Decided: true}, nil, 0},
		{store.Outcome{Decided: true, Granted: 1}, errBad, 3},
	} {
		d := newSharing(newSlow(), 1, time.Minute)
		op := ask(store.Take, "k")
		op.Known, op.Outcome = func() bool { return true }, c.outcome
		s := &serial{key: keyOf(op), inFlight: 1, trusted: 3}
		d.settle(&together{serials: []*serial{s}}, &outcomes{answered: []*waiter{{request: request{op: op, serial: s, err: c.err}, ready: make(chan struct{}, 1)}}})
		if s.trusted != c.want {
			t.Errorf("%+v: %d are trusted, want %d", c, s.trusted, c.want)
		}
	}
}

// TestReleaseWaitsWithOthers: Releases of slots do not wait for the disk, unless they share a
// transaction with a request that does.
func TestReleaseWaitsWithOthers(t *testing.T) {
	for name, kinds := range map[string][]store.Kind{
		"alone":           {store.Release},
		"with Releases":   {store.Charge, store.Release, store.Release},
		"with an Acquire": {store.Charge, store.Release, store.Acquire, store.Release},
		"with a Renew":    {store.Charge, store.Renew, store.Release},
	} {
		inShared(t, 1, time.Minute, func(t *testing.T, _ *fake, s *Dispatcher) {
			var ops []*store.Op
			var all []<-chan error
			for _, kind := range kinds { // what follows a Charge waits for it
				op := ask(kind, "k")
				op.Commit = store.Durable
				answer := make(chan error, 1)
				go func() { answer <- s.Do(t.Context(), op) }()
				synctest.Wait()
				ops, all = append(ops, op), append(all, answer)
			}
			answers(t, all)
			lazy := name == "alone" || name == "with Releases"
			for i, op := range ops {
				if want := lazy && kinds[i] == store.Release; (op.Commit == store.Relaxed) != want {
					t.Errorf("%s: request %d has Commit %q", name, i, op.Commit)
				}
			}
		})
	}
}
