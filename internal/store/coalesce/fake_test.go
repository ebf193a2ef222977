package coalesce

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/memory"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// fake is a store of many keys over the one in memory. A test releases each statement,
// locks keys, and fails statements that contain a key.
type fake struct {
	*memory.Store
	gate chan struct{} // a statement takes one; nil: none waits

	mu      sync.Mutex
	sent    []string // each statement: its keys and counts
	waits   []time.Duration
	locked  map[string]bool
	bad     map[string]bool
	refusal error
	answers int64
	crowded bool
	deaf    bool // statements go on after their context has ended
	now     int64
}

// settings are what a test may change.
type settings struct {
	Options
	waiting int
	timeout time.Duration
	patient int
}

// newStore returns a Store over f.
func newStore(f *fake, inner store.Store, o settings) *Store {
	room := waiting.NewRoom(o.waiting, o.timeout, f)
	return New(inner, f, room, waiting.NewLane(make(chan struct{}, o.patient), o.timeout), o.Options)
}

func newFake() *fake {
	return &fake{Store: memory.New(), locked: map[string]bool{}, bad: map[string]bool{}, now: 1e15}
}

// note records a statement, then waits for the gate and for locks as PostgreSQL does.
func (f *fake) note(ctx context.Context, text string, rows []*store.Row) error {
	f.mu.Lock()
	f.sent = append(f.sent, text)
	f.waits = append(f.waits, rows[0].Query.LockWait)
	gate, deaf := f.gate, f.deaf
	f.mu.Unlock()
	if gate != nil && deaf {
		<-gate
	} else if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", store.ErrUnavailable, ctx.Err())
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range rows {
		if f.bad[r.Query.Key] {
			return &store.RowError{Err: fmt.Errorf("%w: a bad row", store.ErrInvalid)}
		}
	}
	for _, r := range rows {
		if f.locked[r.Query.Key] {
			f.mu.Unlock()
			time.Sleep(r.Query.LockWait)
			f.mu.Lock()
			if f.locked[r.Query.Key] {
				return store.ErrLocked
			}
		}
	}
	return nil
}

func (f *fake) Do(ctx context.Context, op *store.Op) error {
	if op.Key == "panics" {
		panic("a hook of the application")
	}
	text := "alone " + op.Key
	if op.Units != 1 {
		text += fmt.Sprintf(" %v", op.Units)
	}
	if err := f.note(ctx, text, []*store.Row{{Query: &op.Query, Count: 1}}); err != nil {
		return err
	}
	o, err := decide(f.Store, &op.Query, &f.now)
	op.Outcome = o
	return err
}

// decide decides a Take of q at a time.
func decide(m *memory.Store, q *store.Query, now *int64) (store.Outcome, error) {
	op := store.Op{Query: *q}
	op.Now = now
	err := m.Do(context.Background(), &op)
	return op.Outcome, err
}

// Take is Do of a Take that merges.
func (s *Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	op := &store.Op{Query: *q, Merges: true}
	err := s.Do(ctx, op)
	if err != nil {
		return store.Outcome{}, err
	}
	return op.Outcome, nil
}

func (f *fake) TakeMany(ctx context.Context, rows []*store.Row, now *int64) error {
	text := ""
	counts := make([]int64, len(rows)) // as they are when the statement is sent
	for i, r := range rows {
		counts[i] = r.Count
		text += fmt.Sprintf("%s×%d ", r.Query.Key, r.Count)
	}
	if err := f.note(ctx, text, rows); err != nil {
		return err
	}
	for i, r := range rows {
		q := *r.Query
		q.Count = float64(counts[i])
		r.Outcome, _ = decide(f.Store, &q, now)
	}
	return nil
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

// shut closes s and waits until nothing is in flight.
func shut(s *Store) {
	s.Close()
	for !(s.lane.AwaitIdle() && s.AwaitIdle() && s.lane.AwaitIdle()) {
	}
}

func (f *fake) options() settings {
	return settings{Options{Rows: 100, Statements: 2, Now: func() *int64 { now := f.now; return &now }}, 1000, 5 * time.Second, 1}
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

// reply is the result of a Take.
type reply struct {
	store.Outcome
	rows int
	err  error
}

// take takes in the background, in the order of its calls.
func take(ctx context.Context, s *Store, q *store.Query) <-chan reply {
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

// bed returns a Store over a fake whose first statement, for the key "first", waits at
// the gate, so that all requests queue.
func bed(t *testing.T, change func(*settings)) (*Store, *fake, <-chan reply) {
	t.Helper()
	f := newFake()
	f.gate = make(chan struct{})
	o := f.options()
	if change != nil {
		change(&o)
	}
	s := newStore(f, f, o)
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
