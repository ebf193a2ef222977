package lone

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	flying  int            // transactions in flight
	most    int            // of those at once
	locked  map[string]bool
	bad     map[string]bool // keys whose statements fail
	again   map[string]bool // keys that need a second statement
	lost    error           // of each transaction that is shared
	denied  map[string]bool // keys whose Takes are denied
	denies  bool            // reads find that a joint does not fit
	answers int64
	crowded bool
}

func newFake() *fake {
	return &fake{Store: store.Refuse(errors.ErrUnsupported), took: time.Millisecond, abreast: map[string]int{}, locked: map[string]bool{}, bad: map[string]bool{}, again: map[string]bool{}}
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
	_, err := f.statements(ctx, wait, keys...)
	return err
}

// errBad is the error of a statement for a bad key.
var errBad = errors.New("a bad value")

// statements sends statements for keys in one transaction. failed is the index of the one
// that fails.
func (f *fake) statements(ctx context.Context, wait time.Duration, keys ...string) (failed int, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent, f.waits = append(f.sent, fmt.Sprint(keys)), append(f.waits, wait)
	for _, k := range keys {
		f.abreast[k]++
		defer func() { f.abreast[k]-- }()
	}
	f.flying++
	defer func() { f.flying-- }()
	f.most = max(f.most, f.flying)
	took := f.took
	f.mu.Unlock()
	if took < 0 {
		<-ctx.Done()
	} else {
		time.Sleep(took)
	}
	f.mu.Lock()
	for i, k := range keys {
		if f.locked[k] {
			f.mu.Unlock()
			time.Sleep(wait)
			f.mu.Lock()
			if f.locked[k] {
				f.answers++
				return i, store.ErrLocked
			}
		}
		if f.bad[k] {
			f.answers++
			return i, errBad
		}
	}
	if ctx.Err() != nil {
		return -1, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
	f.answers++
	return -1, nil
}

func (f *fake) Pipelines() bool { return true }

// Pipeline records the keys of the calls and then answers them.
func (f *fake) Pipeline(ctx context.Context, wait time.Duration, calls []store.Part) ([]error, error) {
	t := &shared{Store: f, recording: true}
	for _, c := range calls {
		if err := c(t); err == nil {
			return nil, errors.New("a call did not return the error of its recording")
		}
	}
	failed, err := f.statements(ctx, wait, t.keys...)
	if f.lost != nil {
		return nil, f.lost
	}
	if failed >= 0 {
		return nil, &store.PartError{Index: failed, Err: err}
	}
	if err != nil {
		return nil, err
	}
	t.recording = false
	errs := make([]error, len(calls))
	for i, c := range calls {
		errs[i] = c(t)
	}
	return errs, nil
}

// shared is the fake in a transaction that requests share.
type shared struct {
	store.Store
	recording bool
	keys      []string
}

func (t *shared) answer(key string) error {
	switch {
	case t.recording:
		t.keys = append(t.keys, key)
		return errors.New("recorded")
	case t.Store.(*fake).again[key]:
		return fmt.Errorf("wrapped: %w", store.ErrAlone)
	}
	return nil
}

func (t *shared) Charge(_ context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true, Granted: q.Units}, t.answer(q.Key)
}

func (t *shared) Settle(_ context.Context, e *store.Ending) (store.Ended, error) {
	return store.Ended{Changed: true}, t.answer(e.Key)
}

func (t *shared) Take(_ context.Context, q *store.Query) (store.Outcome, error) {
	return t.Store.(*fake).taken(q), t.answer(q.Key)
}

func (t *shared) Refund(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return t.Charge(ctx, q)
}

func (t *shared) Get(_ context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true}, t.answer(q.Key)
}

func (f *fake) Charge(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true, Granted: q.Units}, f.statement(ctx, q.LockWait, q.Key)
}

func (f *fake) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return f.taken(q), f.statement(ctx, q.LockWait, q.Key)
}

// taken returns the outcome of a Take.
func (f *fake) taken(q *store.Query) store.Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := store.Outcome{Decided: true, Granted: q.Units}
	if f.denied[q.Key] {
		o.Granted = 0
	}
	return o
}

func (f *fake) Refund(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return f.Charge(ctx, q)
}

func (f *fake) Reset(ctx context.Context, q *store.Query) error {
	return f.statement(ctx, q.LockWait, q.Key)
}

func (f *fake) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return store.Outcome{Decided: true}, f.statement(ctx, 0, q.Key)
}

func (f *fake) Settle(ctx context.Context, e *store.Ending) (store.Ended, error) {
	row := e.Key
	f.set(func() {
		if f.locked[e.ID] {
			row = e.ID
		}
	})
	err := f.statement(ctx, e.LockWait, row)
	if err == store.ErrLocked && row == e.ID {
		err = store.ErrReservationLocked
	}
	return store.Ended{Changed: err == nil}, err
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
	return New(f, waiting.NewRoom(1000, timeout, f), waiting.NewLane(make(chan struct{}, 1), timeout), 4, 1)
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

// ending is a Settle of a reservation of query's policy.
func ending(key, id string) *store.Ending {
	return &store.Ending{ReservationID: store.ReservationID{Algorithm: algorithm.TokenBucket, Policy: "p", Key: key, ID: id}}
}
