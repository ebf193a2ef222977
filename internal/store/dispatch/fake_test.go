package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// fake is a Database of many keys. Takes are decided in memory, and all else is granted. A
// test releases each statement or says how long it takes, locks keys, and fails statements
// that contain a key.
type fake struct {
	memory *memory.Store
	now    int64

	gate   chan struct{} // a statement takes one; nil: none waits
	took   time.Duration // by each statement; negative: until its context ends
	grants bool          // Takes are granted, and not decided in memory
	deaf   bool          // statements go on after their context has ended

	mu        sync.Mutex
	sent      []string // each statement: its keys and counts
	waits     []time.Duration
	abreast   map[string]int // statements in flight for each key
	flying    int            // transactions in flight
	most      int            // of those at once
	locked    map[string]bool
	bad       map[string]bool // keys whose statements fail
	again     map[string]bool // keys that need a second statement
	lost      error           // of each statement or transaction that is shared
	denied    map[string]bool // keys whose Takes are denied
	denies    bool            // reads find that a group does not fit
	refusal   error
	answers   int64
	exhausted bool
	own       func(*sending.Context) error // a Take that its caller sends, unless nil
}

func newFake() *fake {
	return &fake{memory: memory.New(), now: 1e15, abreast: map[string]int{}, locked: map[string]bool{}, bad: map[string]bool{}, again: map[string]bool{}}
}

// newSlow returns a fake whose statements take a millisecond and are granted.
func newSlow() *fake {
	f := newFake()
	f.took, f.grants = time.Millisecond, true
	return f
}

// errBad is the error of a statement for a bad key.
var errBad = &store.RowError{Err: fmt.Errorf("%w: a bad row", store.ErrInvalid)}

// send sends statements for keys in one transaction, and waits for locks as PostgreSQL does.
// failed is the index of the one that fails.
func (f *fake) send(ctx context.Context, text string, wait time.Duration, keys ...string) (failed int, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent, f.waits = append(f.sent, text), append(f.waits, wait)
	for _, k := range keys {
		f.abreast[k]++
		defer func() { f.abreast[k]-- }()
	}
	f.flying++
	defer func() { f.flying-- }()
	f.most = max(f.most, f.flying)
	gate, deaf, took := f.gate, f.deaf, f.took
	f.mu.Unlock()
	switch {
	case gate != nil && deaf:
		<-gate
	case gate != nil:
		select {
		case <-gate:
		case <-ctx.Done():
		}
	case took < 0:
		<-ctx.Done()
	default:
		time.Sleep(took)
	}
	f.mu.Lock()
	if ctx.Err() != nil && !deaf {
		return -1, fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
	}
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
	f.answers++
	return -1, nil
}

// decide decides a Take of q at a time.
func decide(m *memory.Store, q *store.Query, now *int64) (store.Outcome, error) {
	op := store.Op{Query: *q}
	op.Now = now
	err := m.Do(context.Background(), &op)
	return op.Outcome, err
}

// grant sets an op's outcome.
func (f *fake) grant(op *store.Op) {
	f.mu.Lock()
	defer f.mu.Unlock()
	op.Outcome, op.Ended = store.Outcome{Decided: true, Granted: op.Units}, &store.Ended{Changed: true}
	if op.Kind == store.Take && f.denied[op.Key] {
		op.Outcome.Granted = 0
	}
}

func (f *fake) Do(ctx context.Context, op *store.Op) (err error) {
	row := op.Key
	if f.own != nil && sending.IsOwn(ctx) {
		return f.own(sending.Of(ctx))
	}
	switch {
	case row == "panics":
		panic("a hook of the application")
	case op.Kind == store.Take && !f.grants:
		text := "alone " + row
		if op.Units != 1 {
			text += fmt.Sprintf(" %v", op.Units)
		}
		if _, err = f.send(ctx, text, op.LockWait, row); err == nil {
			op.Outcome, err = decide(f.memory, &op.Query, &f.now)
		}
		return err
	case op.Kind == store.GetAll:
		for _, g := range op.Groups {
			g.Outcome = store.Outcome{Decided: true, Granted: 1}
			if f.denies {
				g.Outcome.Granted = 0
			}
		}
		return nil
	case op.Kind == store.TakeAll:
		var keys []string
		for _, g := range op.Groups {
			keys = append(keys, g.Key)
		}
		_, err = f.send(ctx, fmt.Sprint(keys), op.LockWait, keys...)
		op.Allowed = err == nil
		return err
	case op.Kind == store.Settle:
		f.set(func() {
			if f.locked[op.ID] {
				row = op.ID
			}
		})
	}
	if _, err = f.send(ctx, fmt.Sprint([]string{row}), op.LockWait, row); err == nil {
		f.grant(op)
	}
	if err == store.ErrLocked && op.Kind == store.Settle && row == op.ID {
		err = store.ErrReservationLocked
	}
	return err
}

func (f *fake) TakeMany(ctx context.Context, rows []*store.Row, now *int64) error {
	var text string
	var keys []string
	counts := make([]int64, len(rows)) // as they are when the statement is sent
	for i, r := range rows {
		counts[i], keys = r.Count, append(keys, r.Query.Key)
		text += fmt.Sprintf("%s×%d ", r.Query.Key, r.Count)
	}
	if _, err := f.send(ctx, text, rows[0].Query.LockWait, keys...); err != nil || f.lost != nil {
		return cmp.Or(err, f.lost)
	}
	for i, r := range rows {
		q := *r.Query
		q.Count = float64(counts[i])
		r.Outcome, _ = decide(f.memory, &q, now)
	}
	return nil
}

func (f *fake) Pipelines() bool { return true }

// Shard implements Database: the key "a@1" is in shard 1 of 3, others in the only one.
func (f *fake) Shard(key string) (n, of int) {
	if _, number, ok := strings.Cut(key, "@"); ok {
		n, _ = strconv.Atoi(number)
		return n, 3
	}
	return 0, 1
}

func (f *fake) Leaves() bool { return f.own != nil }

func (f *fake) Pipeline(ctx context.Context, wait time.Duration, ops []*store.Op) ([]error, error) {
	var keys []string
	for _, op := range ops {
		if op.LockWait != wait {
			return nil, fmt.Errorf("LockWait %v of %v", op.LockWait, wait)
		}
		keys = append(keys, op.Key)
	}
	failed, err := f.send(ctx, fmt.Sprint(keys), wait, keys...)
	switch {
	case f.lost != nil:
		return nil, f.lost
	case failed >= 0:
		return nil, &store.PartError{Index: failed, Err: err}
	case err != nil:
		return nil, err
	}
	errs := make([]error, len(ops))
	for i, op := range ops {
		if f.again[op.Key] {
			errs[i] = fmt.Errorf("wrapped: %w", store.ErrAlone)
		}
		f.grant(op)
	}
	return errs, nil
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

func (f *fake) Refuses() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refusal
}

func (f *fake) Exhausted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.exhausted
}

func (f *fake) Answers() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers
}

// set changes the fake.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// statements returns the statements since the last call.
func (f *fake) statements() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.sent, f.waits = nil, nil }()
	return f.sent
}

// shut waits until nothing is in flight and closes s.
func shut(s *Dispatcher) {
	for !s.Close(nil) {
		s.AwaitIdle()
	}
}

func (f *fake) options() Options {
	return Options{Waiting: 1000, Timeout: 5 * time.Second, Connections: 5, Share: true, Rows: 100, Statements: 2, Now: func() *int64 { now := f.now; return &now }}
}

// serialOptions are those of a Dispatcher. It has up to most transactions in flight, each for
// at most share requests, and one for locked rows.
func serialOptions(most, share int, timeout time.Duration) Options {
	return Options{Waiting: 1000, Timeout: timeout, Connections: most + 1, Share: share > 1, Rows: share}
}

func newSerial(f *fake, timeout time.Duration) *Dispatcher {
	return New(f, serialOptions(4, 1, timeout))
}

// inShared runs test in synthetic time over a slow fake with a Dispatcher whose requests
// share transactions. Up to most are in flight; if most is 0, 4 that share none.
func inShared(t *testing.T, most int, timeout time.Duration, test func(*testing.T, *fake, *Dispatcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newSlow()
		if most == 0 {
			test(t, f, newSerial(f, timeout))
		} else {
			test(t, f, newSharing(f, most, timeout))
		}
	})
}

// charges charges a key n times, in order, and returns the channels of the answers.
func charges(ctx context.Context, s *Dispatcher, n int, key string) (all []<-chan error) {
	for range n {
		all = append(all, charge(ctx, s, key))
	}
	return all
}

func newSharing(f *fake, most int, timeout time.Duration) *Dispatcher {
	o := serialOptions(most, 100, timeout)
	o.Waiting = 10_000
	return New(f, o)
}

// query returns a request for a token bucket of capacity 3.
func query(key string, cost float64) *store.Query {
	return &store.Query{
		Algorithm: algorithm.TokenBucket, Policy: "p", Key: key,
		Units: cost, Cost: cost, Count: 1, Unit: cost, Room: 3,
		Rules:  algorithm.Rules{Burst: 3, Capacity: 3, Leak: 1e-9, Tick: 1, Period: 3600e6, Lifetime: 3600e6},
		Commit: store.Durable,
	}
}

func query1(key string) store.Query { return *query(key, 1) }

// ask returns an op for a key.
func ask(k store.Kind, key string) *store.Op { return &store.Op{Kind: k, Query: query1(key)} }

// all returns a TakeAll.
func all(groups ...*store.Group) *store.Op { return &store.Op{Kind: store.TakeAll, Groups: groups} }

// ending is a Settle of a reservation of query's policy.
func ending(key, id string) *store.Op {
	op := ask(store.Settle, key)
	op.ID = id
	return op
}

// reply is the result of a Take that merges.
type reply struct {
	store.Outcome
	rows int
	err  error
}

func takeOne(ctx context.Context, s *Dispatcher, q *store.Query) (store.Outcome, error) {
	op := &store.Op{Query: *q, Merges: true}
	if err := s.Do(ctx, op); err != nil {
		return store.Outcome{}, err
	}
	return op.Outcome, nil
}

// take takes in the background, in the order of its calls.
func take(ctx context.Context, s *Dispatcher, q *store.Query) <-chan reply {
	answer := make(chan reply, 1)
	go func() {
		op := &store.Op{Query: *q, Merges: true}
		if err := s.Do(ctx, op); err != nil {
			answer <- reply{err: err}
			return
		}
		answer <- reply{op.Outcome, op.Rows, nil}
	}()
	synctest.Wait() // until it is sent or waits
	return answer
}

// charge charges in the background, in the order of its calls, and returns the error.
func charge(ctx context.Context, s *Dispatcher, key string) <-chan error {
	answer := make(chan error, 1)
	go func() {
		op := ask(store.Charge, key)
		err := s.Do(ctx, op)
		if err == nil && op.Outcome.Granted != 1 {
			err = fmt.Errorf("%+v", op.Outcome)
		}
		answer <- err
	}()
	synctest.Wait()
	return answer
}

// inFlight returns a Dispatcher over a fake whose first statement, for the key "first", waits at
// the gate, so that all requests queue.
func inFlight(t *testing.T, change func(*Options)) (*Dispatcher, *fake, <-chan reply) {
	t.Helper()
	f := newFake()
	f.gate = make(chan struct{})
	o := f.options()
	if change != nil {
		change(&o)
	}
	s := New(f, o)
	first := take(t.Context(), s, query("first", 1))
	if got := f.statements(); !slices.Equal(got, []string{"alone first"}) {
		t.Fatalf("sent %q", got)
	}
	return s, f, first
}

// open lets one statement go.
func (f *fake) open() {
	f.gate <- struct{}{}
	synctest.Wait()
}
