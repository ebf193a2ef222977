package lone

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// fake is a store whose statements take a while and wait for locked keys.
type fake struct {
	store.Store // nil: a method that no test uses

	took time.Duration // by each statement; negative: until its context ends

	mu      sync.Mutex
	sent    []string
	waits   []time.Duration
	abreast map[string]int // statements in flight for each key
	most    int            // statements in flight at once
	locked  map[string]bool
	denies  bool // reads find that a joint does not fit
	answers int64
	crowded bool
}

func newFake() *fake {
	return &fake{Store: store.Refuse(errors.ErrUnsupported), took: time.Millisecond, abreast: map[string]int{}, locked: map[string]bool{}}
}

func (f *fake) Refuses() error { return nil }

func (f *fake) Crowded() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crowded
}

func (f *fake) Answers() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers
}

// statement sends a statement for keys.
func (f *fake) statement(ctx context.Context, wait time.Duration, keys ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent, f.waits = append(f.sent, fmt.Sprint(keys)), append(f.waits, wait)
	flying := 0
	for _, k := range keys {
		f.abreast[k]++
		defer func() { f.abreast[k]-- }()
	}
	for _, n := range f.abreast {
		flying += n
	}
	f.most = max(f.most, flying)
	f.mu.Unlock()
	if f.took < 0 {
		<-ctx.Done()
	} else {
		time.Sleep(f.took)
	}
	f.mu.Lock()
	for _, k := range keys {
		if f.locked[k] {
			f.mu.Unlock()
			time.Sleep(wait)
			f.mu.Lock()
			if f.locked[k] {
				f.answers++
				return store.ErrLocked
			}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	f.answers++
	return nil
}

func (f *fake) Charge(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true, Granted: q.Units}, f.statement(ctx, q.LockWait, q.Key)
}

func (f *fake) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true}, f.statement(ctx, 0, q.Key)
}

func (f *fake) Settle(ctx context.Context, e *store.Ending) (store.Ended, error) {
	return store.Ended{Changed: true}, f.statement(ctx, e.LockWait, e.ID)
}

func (f *fake) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (bool, error) {
	if !possible {
		for _, j := range joints {
			j.Outcome = store.Outcome{Decided: true, Granted: 1}
			if f.denies {
				j.Outcome.Granted = 0
			}
		}
		return false, nil
	}
	var keys []string
	for _, j := range joints {
		keys = append(keys, j.Key)
	}
	return true, f.statement(ctx, joints[0].LockWait, keys...)
}

func (f *fake) Locked(_ context.Context, rows []*store.Row) ([]bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	locked := make([]bool, len(rows))
	for i, r := range rows {
		locked[i] = f.locked[r.Query.Key]
	}
	return locked, nil
}

// set changes the fake.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// newStore returns a Store with at most 4 statements in flight and one in the lane.
func newStore(f *fake, timeout time.Duration) *Store {
	return New(f, waiting.NewRoom(1000, timeout, f), waiting.NewLane(make(chan struct{}, 1), timeout), 4)
}

func query(key string) *store.Query {
	return &store.Query{Algorithm: algorithm.TokenBucket, Policy: "p", Key: key, Units: 3, Cost: 1, Count: 3}
}

// charge charges in the background, in the order of its calls, and returns the error.
func charge(ctx context.Context, s *Store, key string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		o, err := s.Charge(ctx, query(key))
		if err == nil && o.Granted != 3 {
			err = fmt.Errorf("%+v", o)
		}
		answer <- err
	}()
	synctest.Wait()
	return answer
}

// TestTurns: the keys take turns, so that many requests for one do not delay another, and
// at most two statements for a key are in flight.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
		var hot []<-chan error
		for range 100 {
			hot = append(hot, charge(t.Context(), s, "hot"))
		}
		start := time.Now()
		if err := <-charge(t.Context(), s, "other"); err != nil || time.Since(start) > time.Millisecond {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		for _, answer := range hot {
			if err := <-answer; err != nil {
				t.Error(err)
			}
		}
		if f.most != 3 || !s.idleNow() {
			t.Errorf("%d statements at once; %d running, flows %v", f.most, s.running, s.flows)
		}
	})
}

// idleNow reports whether s keeps nothing.
func (s *Store) idleNow() bool {
	s.AwaitIdle()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.flows) == 0 && len(s.turns) == 0
}

// TestTurnsAreBounded: no more statements are in flight than allowed, reads of one key
// among them.
func TestTurnsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				if _, err := s.Get(t.Context(), query("k")); err != nil {
					t.Error(err)
				}
				if _, err := s.Settle(t.Context(), &store.Ending{ID: fmt.Sprint(i)}); err != nil {
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

// TestTurnsLeave: a caller that leaves goes immediately. Its statement is not cancelled;
// if it was not sent, it is not.
func TestTurnsLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.took = time.Second
		s := newStore(f, time.Minute)
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
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
		early := charge(t.Context(), s, "k")
		if s.Close() {
			t.Error("closed while a statement was in flight")
		}
		late := charge(t.Context(), s, "k")
		s.AwaitIdle()
		if a, b := <-early, <-late; a != nil || b != nil || !s.Close() {
			t.Errorf("%v, %v", a, b)
		}
		if err := <-charge(t.Context(), s, "k"); !errors.Is(err, store.ErrClosed) || len(f.sent) != 2 || s.room.Callers() != 0 {
			t.Errorf("%v, sent %q", err, f.sent)
		}
	})
}

// TestTurnsKnownMeanwhile: a request whose answer comes to be known while it waits is not
// sent.
func TestTurnsKnownMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
		first, second := charge(t.Context(), s, "k"), charge(t.Context(), s, "k")
		var known atomic.Bool
		q := query("k")
		q.Known = known.Load
		answer := make(chan error)
		go func() {
			_, err := s.Take(t.Context(), q)
			answer <- err
		}()
		synctest.Wait()
		known.Store(true)
		if err := <-answer; err != store.ErrKnown || len(f.sent) != 2 {
			t.Errorf("%v, sent %q", err, f.sent)
		}
		if _, err := s.Charge(t.Context(), q); err != nil { // a denial is no answer to it
			t.Error(err)
		}
		<-first
		<-second
		s.AwaitIdle()
	})
}

// TestTurnsGrantedTooLate: what is granted after its caller has left is told.
func TestTurnsGrantedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.took = time.Second
		s := newStore(f, time.Minute)
		joints := []*store.Joint{{Query: *query("own")}, {Query: *query("shared")}}
		told := 0
		joints[0].Late = func(store.Outcome) { told++ }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.TakeAll(ctx, joints, true); !errors.Is(err, context.DeadlineExceeded) || told != 0 {
			t.Error(err)
		}
		s.AwaitIdle()
		if told != 1 {
			t.Errorf("told %d times", told)
		}
		if allowed, err := s.TakeAll(t.Context(), joints, true); !allowed || err != nil || told != 1 {
			t.Errorf("%v, %v, told %d times", allowed, err, told)
		}
		s.AwaitIdle()
	})
}

// TestTurnsTellWhy: a request that was not sent while others were answered met an
// overload. If the database answered nobody, it is away.
func TestTurnsTellWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.took = 600 * time.Millisecond
		s := newStore(f, time.Second)
		var all []<-chan error
		for range 6 {
			all = append(all, charge(t.Context(), s, "slow"))
		}
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
		for range 6 {
			all = append(all, charge(t.Context(), s, "away"))
		}
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
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
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

// TestTurnsOfAHotKey: requests for a hot key with keys of their own have the turns of one
// key.
func TestTurnsOfAHotKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		s := newStore(f, time.Minute)
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				joints := []*store.Joint{{Query: *query(fmt.Sprint("token-", i)), Index: 1}, {Query: *query("client"), Hot: true}}
				if _, err := s.TakeAll(t.Context(), joints, true); err != nil {
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

// TestTurnsKeepNoRowsLocked: an AllowAll that waits for a locked row holds its other rows
// for moments only: others for them do not wait. Then it is granted.
func TestTurnsKeepNoRowsLocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.locked["held"] = true
		s := newStore(f, 5*time.Second)
		answer := make(chan error)
		go func() {
			_, err := s.TakeAll(t.Context(), []*store.Joint{{Query: *query("shared")}, {Query: *query("held")}}, true)
			answer <- err
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
			joints := []*store.Joint{{Query: *query("own")}, {Query: *query("shared")}}
			joints[0].BlockFor = c.blockFor
			start := time.Now()
			allowed, err := s.TakeAll(t.Context(), joints, true)
			if allowed || !errors.Is(err, c.want) || c.want == nil && time.Since(start) > 2*waiting.Patience {
				t.Errorf("%+v: %v, %v after %v", c, allowed, err, time.Since(start))
			}
			s.lane.AwaitIdle()
		}
	})
}
