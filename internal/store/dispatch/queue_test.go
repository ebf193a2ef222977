package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
)

// TestTakeAlone: without a statement in flight a request is sent immediately.
func TestTakeAlone(t *testing.T) {
	f := newFake()
	s := New(f, f.options())
	for range 3 {
		if o, err := takeOne(t.Context(), s, query("k", 1)); err != nil || o.Granted != 1 {
			t.Fatal(o, err)
		}
	}
	if got := f.statements(); !slices.Equal(got, []string{"alone k", "alone k", "alone k"}) {
		t.Errorf("sent %q", got)
	}
}

// TestTakeShares: requests that come while a statement is in flight share the next, in
// lock order. Equal ones are one row, of which the first are granted.
func TestTakeShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, first := inFlight(t, nil)
		var hot []<-chan reply
		for range 5 {
			hot = append(hot, take(t.Context(), s, query("hot", 1)))
		}
		other := take(t.Context(), s, query("a", 1))
		if s.Callers() != 7 {
			t.Errorf("%d wait", s.Callers())
		}
		f.open()
		f.open()
		if got := f.statements(); !slices.Equal(got, []string{"a×1 hot×5 "}) {
			t.Errorf("sent %q", got)
		}
		for i, c := range hot {
			r := <-c
			if r.err != nil || (r.Granted == 1) != (i < 3) || r.Blocked {
				t.Errorf("request %d: %+v", i, r)
			}
			if level := r.View.Level(&query("hot", 1).Rules, r.UpdatedAt); level < float64(min(i+1, 3))-1e-6 || level > float64(min(i+1, 3)) {
				t.Errorf("request %d was answered at level %v", i, level)
			}
		}
		if r := <-other; r.Granted != 1 {
			t.Errorf("%+v", r)
		}
		<-first
		if s.Callers() != 0 {
			t.Errorf("%d wait", s.Callers())
		}
	})
}

// TestTakeByShard: a statement has keys of one shard, and shards do not wait for each other.
func TestTakeByShard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, first := inFlight(t, nil)
		var all []<-chan reply
		for _, key := range []string{"a@1", "b@2", "c@1", "d@2", "e@1"} {
			all = append(all, take(t.Context(), s, query(key, 1)))
		}
		synctest.Wait()
		for range 5 {
			f.open()
		}
		got := f.statements()
		slices.Sort(got)
		if want := []string{"alone a@1", "alone b@2", "alone d@2", "c@1×1 e@1×1 "}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		<-first
		for _, c := range all {
			<-c
		}
	})
}

// TestTakeByHash: with Options.Shards a statement has one key, whose callers share it unless a denial
// blocks the key.
func TestTakeByHash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, first := inFlight(t, func(o *Options) { o.Shards = 1 })
		blocks := query("c", 1)
		blocks.BlockFor = 1
		all := []<-chan reply{first}
		for _, q := range []*store.Query{query("a", 1), query("b", 1), query("a", 1), blocks, blocks} {
			all = append(all, take(t.Context(), s, q))
		}
		synctest.Wait()
		for range 5 {
			f.open()
		}
		got := f.statements()
		slices.Sort(got)
		if want := []string{"alone a 2", "alone b", "alone c", "alone c"}; !slices.Equal(got, want) {
			t.Errorf("sent %q, want %q", got, want)
		}
		for _, c := range all {
			<-c
		}
	})
}

// TestTakeInOrderOfArrival: requests that cannot be merged wait for the next statement
// and do not pass earlier ones.
func TestTakeInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		one := take(t.Context(), s, query("k", 1))
		two := take(t.Context(), s, query("k", 3)) // with either of the others it is above the capacity
		late := take(t.Context(), s, query("k", 1))
		for range 4 {
			f.open()
		}
		if got := f.statements(); !slices.Equal(got, []string{"alone k", "alone k 3", "alone k"}) {
			t.Errorf("sent %q", got)
		}
		if a, b, c := <-one, <-two, <-late; a.Granted != 1 || b.Granted != 0 || c.Granted != 1 {
			t.Errorf("granted %v, %v and %v", a.Granted, b.Granted, c.Granted)
		}
	})
}

// TestTakeBlocks: if a denial blocks the key, the row's later requests find it blocked.
func TestTakeBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		var all []<-chan reply
		for range 6 {
			q := query("k", 1)
			q.BlockFor = 60e6
			all = append(all, take(t.Context(), s, q))
		}
		for range 4 {
			select {
			case f.gate <- struct{}{}:
			default:
			}
			synctest.Wait()
		}
		for i, c := range all {
			r := <-c
			if (r.Granted == 1) != (i < 3) || r.Blocked != (i > 3) || i < 3 && r.BlockedUntil != 0 {
				t.Errorf("request %d: %+v", i, r)
			}
		}
	})
}

// TestTakeLeaves: a caller that leaves is not sent, and its neighbours are.
func TestTakeLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		goes, stays := take(ctx, s, query("k", 1)), take(t.Context(), s, query("k", 1))
		lone := take(ctx, s, query("lone", 1))
		cancel()
		synctest.Wait()
		for _, c := range []<-chan reply{goes, lone} {
			if r := <-c; !errors.Is(r.err, context.Canceled) {
				t.Errorf("%+v", r)
			}
		}
		f.open()
		f.open()
		if got := f.statements(); !slices.Equal(got, []string{"alone k"}) {
			t.Errorf("sent %q", got)
		}
		if r := <-stays; r.Granted != 1 || r.err != nil {
			t.Errorf("%+v", r)
		}
	})
}

// TestTakeTimesOut: a caller waits for the timeout, whatever the statements do.
func TestTakeTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, first := inFlight(t, nil)
		start := time.Now()
		r := <-take(t.Context(), s, query("k", 1))
		if !errors.Is(r.err, store.ErrUnavailable) || !strings.Contains(r.err.Error(), "Config.Timeout is 5s") || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %+v", time.Since(start), r)
		}
		if r := <-first; !errors.Is(r.err, store.ErrUnavailable) { // its statement has the same time
			t.Errorf("%+v", r)
		}
		shut(s)
	})
}

// TestTakeOverloaded: no more callers wait than may wait, nor while the breaker is
// open.
func TestTakeOverloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, first := inFlight(t, func(o *Options) { o.Waiting = 2 })
		waits := take(t.Context(), s, query("k", 1))
		if r := <-take(t.Context(), s, query("k", 1)); !errors.Is(r.err, store.ErrOverloaded) {
			t.Errorf("%+v", r)
		}
		open := fmt.Errorf("%w: open", store.ErrUnavailable)
		f.set(func() { f.refusal = open })
		if r := <-take(t.Context(), s, query("k", 1)); r.err != open {
			t.Errorf("%+v", r)
		}
		f.set(func() { f.refusal = nil })
		f.open()
		f.open()
		if a, b := <-first, <-waits; a.err != nil || b.err != nil {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// TestTakeShareOfAKey: a quarter of all, 64 here, may wait for one key, whatever the
// rows are that they wait in.
func TestTakeShareOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, func(o *Options) { o.Waiting, o.Statements = 100, 1 })
		for i := range 64 {
			take(t.Context(), s, query("k", []float64{1, 3}[i%2])) // no two fit together
		}
		refused := func() bool {
			ctx, cancel := context.WithCancel(t.Context())
			answer := take(ctx, s, query("k", 1))
			cancel()
			return errors.Is((<-answer).err, store.ErrOverloaded)
		}
		if !refused() {
			t.Error("one more may wait")
		}
		f.open() // takes the first row off the queue
		admitted := take(t.Context(), s, query("k", 1))
		select {
		case r := <-admitted:
			t.Errorf("after one left the queue: %+v", r)
		default:
		}
		if !refused() {
			t.Error("two more may wait")
		}
		close(f.gate)
		shut(s)
	})
}

// TestTakeSplits: another statement goes out for many keys, up to Options.Statements.
func TestTakeSplits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		for i := range 3 * splitGroups {
			take(t.Context(), s, query(fmt.Sprintf("%02d", i), 1))
		}
		got := f.statements()
		if len(got) != 1 || strings.Count(got[0], "×") != splitGroups {
			t.Errorf("sent %q", got)
		}
		f.open()
		f.open()
		f.open()
		if got := f.statements(); len(got) != 1 || strings.Count(got[0], "×") != 2*splitGroups {
			t.Errorf("sent %q", got)
		}
	})
}

// TestTakeBadRowFailsAlone: a row that fails its statement costs its neighbours a few
// statements and no answer.
func TestTakeBadRowFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, func(o *Options) { o.Statements = 1 })
		f.set(func() { f.bad["07"] = true })
		var all []<-chan reply
		for i := range 64 {
			all = append(all, take(t.Context(), s, query(fmt.Sprintf("%02d", i), 1)))
		}
		close(f.gate)
		for i, c := range all {
			if r := <-c; i == 7 != errors.Is(r.err, store.ErrInvalid) || i != 7 && r.Granted != 1 {
				t.Errorf("key %d: %+v", i, r)
			}
		}
		if got := f.statements(); len(got) > 1+2*pieces {
			t.Errorf("%d statements", len(got))
		}
	})
}

// TestTakeKeepsDecidedRows: rows that a failed statement still decided are answered and
// not sent again.
func TestTakeKeepsDecidedRows(t *testing.T) {
	for _, fails := range []error{errors.New("half of it"), store.ErrLocked} {
		synctest.Test(t, func(t *testing.T) {
			s, f, _ := inFlight(t, func(o *Options) { o.Statements = 1 })
			half := &halfDone{fake: f, err: fails}
			s.db = half
			a, b := take(t.Context(), s, query("a", 1)), take(t.Context(), s, query("b", 1))
			f.open()
			f.statements()
			f.open()
			if r := <-a; r.err != nil || r.Granted != 1 {
				t.Errorf("%v, decided: %+v", fails, r)
			}
			if fails == store.ErrLocked {
				f.open()
			}
			r := <-b
			if fails == store.ErrLocked {
				if got := f.statements(); r.err != nil || r.Granted != 1 || !slices.Equal(got, []string{"alone b"}) {
					t.Errorf("after the lock: %+v, sent %q", r, got)
				}
			} else if r.err != fails {
				t.Errorf("not decided: %+v", r)
			}
			shut(s)
		})
	}
}

// TestTakeOutcomeUnknown: if the answer to a statement is lost, all its requests get the
// error, and none is sent again.
func TestTakeOutcomeUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, _ := inFlight(t, nil)
		lost := fmt.Errorf("%w: %w", store.ErrUnavailable, io.ErrUnexpectedEOF)
		a, b := take(t.Context(), s, query("a", 1)), take(t.Context(), s, query("b", 1))
		f.set(func() { f.lost = lost })
		f.open()
		f.open()
		if a, b := <-a, <-b; a.err != lost || b.err != lost {
			t.Errorf("%+v, %+v", a, b)
		}
		shut(s)
		if got := f.statements(); !slices.Equal(got, []string{"a×1 b×1 "}) {
			t.Errorf("sent %q", got)
		}
	})
}

// halfDone is a fake whose first statement decides only its first row and fails.
type halfDone struct {
	*fake
	err  error
	done bool
}

func (h *halfDone) TakeMany(ctx context.Context, rows []*store.Row, now *int64) error {
	if h.done {
		return h.fake.TakeMany(ctx, rows, now)
	}
	h.done = true
	if err := h.fake.TakeMany(ctx, rows[:1], now); err != nil {
		return err
	}
	return h.err
}

// TestTakeTimersStayInTheirStore: a Store in a test's synthetic time leaves no timer that
// a Store outside of it could use, which would end the process.
func TestTakeTimersStayInTheirStore(t *testing.T) {
	use := func(t *testing.T) {
		f := newFake()
		s := New(f, f.options())
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() { _, _ = takeOne(t.Context(), s, query("k", 1)) })
		}
		wg.Wait()
	}
	synctest.Test(t, use)
	use(t)
}

// TestTakeAsIfAlone: under concurrency, with mixed costs and keys, exactly the limit is
// granted and each request gets an answer.
func TestTakeAsIfAlone(t *testing.T) {
	f := newFake()
	f.memory = memory.New()
	o := f.options()
	o.Rows = 3
	s := New(f, o)
	var mu sync.Mutex
	granted := map[string]float64{}
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 50 {
				q := query(fmt.Sprint(rand.IntN(20)), float64(1+rand.IntN(2)))
				o, err := takeOne(t.Context(), s, q)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				granted[q.Key] += o.Granted * q.Cost
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	for key, units := range granted {
		if units != 3 {
			t.Errorf("%s was granted %v of 3", key, units)
		}
	}
}
