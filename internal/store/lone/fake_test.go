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
	denies  bool            // reads find that a group does not fit
	answers int64
	crowded bool
}

func newFake() *fake {
	return &fake{took: time.Millisecond, abreast: map[string]int{}, locked: map[string]bool{}, bad: map[string]bool{}, again: map[string]bool{}}
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

// Pipeline carries ops out as statements of one transaction.
func (f *fake) Pipeline(ctx context.Context, wait time.Duration, ops []*store.Op) ([]error, error) {
	var keys []string
	for _, op := range ops {
		if op.LockWait != wait {
			return nil, fmt.Errorf("LockWait %v of %v", op.LockWait, wait)
		}
		keys = append(keys, op.Key)
	}
	failed, err := f.statements(ctx, wait, keys...)
	if f.lost != nil {
		return nil, f.lost
	}
	if failed >= 0 {
		return nil, &store.PartError{Index: failed, Err: err}
	}
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		if f.again[op.Key] {
			errs[i] = fmt.Errorf("wrapped: %w", store.ErrAlone)
		}
		f.answer(op)
	}
	return errs, nil
}

// answer sets an op's outcome.
func (f *fake) answer(op *store.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op.Outcome = store.Outcome{Decided: true, Granted: op.Units}
	if op.Kind == store.Take && f.denied[op.Key] {
		op.Outcome.Granted = 0
	}
	op.Ended = &store.Ended{Changed: true}
}

func (f *fake) Do(ctx context.Context, op *store.Op) error {
	row := op.Key
	switch op.Kind {
	case store.GetAll:
		for _, g := range op.Groups {
			g.Outcome = store.Outcome{Decided: true, Granted: 1}
			if f.denies {
				g.Outcome.Granted = 0
			}
		}
		return nil
	case store.TakeAll:
		var keys []string
		for _, g := range op.Groups {
			keys = append(keys, g.Key)
		}
		err := f.statement(ctx, op.LockWait, keys...)
		op.Allowed = err == nil
		return err
	case store.Settle:
		f.set(func() {
			if f.locked[op.ID] {
				row = op.ID
			}
		})
	}
	err := f.statement(ctx, op.LockWait, row)
	if err == store.ErrLocked && op.Kind == store.Settle && row == op.ID {
		err = store.ErrReservationLocked
	}
	if err == nil {
		f.answer(op)
	}
	return err
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

func query(key string) store.Query {
	return store.Query{Algorithm: algorithm.TokenBucket, Policy: "p", Key: key, Units: 3, Cost: 1, Count: 3}
}

// ask returns an op for a key.
func ask(k store.Kind, key string) *store.Op { return &store.Op{Kind: k, Query: query(key)} }

// all returns a TakeAll.
func all(groups ...*store.Group) *store.Op { return &store.Op{Kind: store.TakeAll, Groups: groups} }

// charge charges in the background, in the order of its calls, and returns the error.
func charge(ctx context.Context, s *Store, key string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		op := ask(store.Charge, key)
		err := s.Do(ctx, op)
		if err == nil && op.Outcome.Granted != 3 {
			err = fmt.Errorf("%+v", op.Outcome)
		}
		answer <- err
	}()
	synctest.Wait()
	return answer
}

// ending is a Settle of a reservation of query's policy.
func ending(key, id string) *store.Op {
	op := ask(store.Settle, key)
	op.ID = id
	return op
}
