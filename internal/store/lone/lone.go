// Package lone sends requests in statements of their own: few at a time, the keys in turn,
// so that a hot key does not keep the others out. Requests that wait share transactions, and
// with them round trips and flushes. No caller can cancel a statement in flight, which would
// cost its connection: a caller that leaves goes immediately, and the statement runs to its
// end.
package lone

import (
	"context"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// Store is a store.Store that sends each request to the inner store in its turn. If a
// row is locked by another transaction, the request goes to the lane. It is safe for
// concurrent use.
type Store struct {
	inner Database
	room  *waiting.Room
	lane  *waiting.Lane
	most  int // transactions in flight
	share int // requests in one transaction; 1: they share none
	// tickets are of this Store: a channel made in a test's synthetic time must stay in it.
	tickets sync.Pool

	mu      sync.Mutex
	watch   *waiting.Watch
	idle    sync.Cond // nothing is in flight
	closed  bool
	running int // goroutines that send
	flows   map[flowKey]*flow
	turns   []*flow // those with a request to send and none in flight
	seconds []*flow // those whose second transaction may be sent if no other key waits
	reads   int     // requests in flows of reads
}

// Database is the inner store.
type Database interface {
	store.Store
	// Pipelines reports whether Pipeline can be used at present.
	Pipelines() bool
	// Pipeline carries ops out as one transaction in one round trip and returns their
	// errors. Those that lock rows are in lock order, and have one Commit and the LockWait
	// wait. Of one that needs another statement after one that changed nothing it is
	// store.ErrAlone.
	//
	// After a *store.PartError nothing was decided, and after store.ErrAlone nothing was sent.
	// After any other error the ops may have been carried out.
	Pipeline(ctx context.Context, wait time.Duration, ops []*store.Op) (errs []error, err error)
	// Locked marks the rows that other transactions have locked.
	Locked(ctx context.Context, rows []*store.Row) ([]bool, error)
}

// New returns a Store over inner with at most that many transactions in flight, each for at
// most share requests.
func New(inner Database, room *waiting.Room, lane *waiting.Lane, most, share int) *Store {
	s := &Store{inner: inner, room: room, lane: lane, most: max(1, most), share: share, flows: map[flowKey]*flow{}}
	s.idle.L, s.watch = &s.mu, waiting.NewWatch(room, &s.mu)
	return s
}

// AwaitIdle waits until no request waits or is in flight, except in the lane. It reports
// whether that was so before.
func (s *Store) AwaitIdle() (was bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was = s.running == 0
	for s.running > 0 {
		s.idle.Wait()
	}
	return was
}

// Close makes later requests return ErrClosed, if nothing waits or is in flight, here or in
// the lane, and reports whether that was so.
func (s *Store) Close() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = s.closed || s.running == 0 && s.lane.Idle()
	return s.closed
}

// flowKey is a key, with its reads apart: they do not wait for each other's locks.
type flowKey struct {
	waiting.Slot
	reads bool
}

// flow is the requests of one key, in order of arrival.
type flow struct {
	key      flowKey
	calls    []*call
	inFlight int // transactions
	// trusted is the number of requests that a denial would answer may share a transaction with
	// the first: as many as were granted since the last denial.
	trusted int
	// Whether it is in Store.turns and Store.seconds. It may have no turn there by now.
	inTurns, inSeconds bool
}

// abreast is the number of transactions for one key may be in flight if no other key waits: while
// one has the row's lock, the other waits for it.
const abreast = 2

// first reports whether the flow has a request and none in flight; reads do not wait for
// each other.
func (f *flow) first() bool { return len(f.calls) > 0 && (f.key.reads || f.inFlight == 0) }

// second reports whether the flow has a request that may be beside another.
func (f *flow) second() bool { return len(f.calls) > 0 && f.inFlight < abreast }

// call is one request of a caller.
type call struct {
	*Store
	op     *store.Op
	key    flowKey
	ticket *waiting.Ticket
	flow   *flow // while it is in flight
	err    error
	beside int // requests that its transaction decided, besides it
	// What was decided, if a denial would have answered the request.
	granted, denied bool

	// Guarded by Store.mu.
	cancel context.CancelFunc // of the statement in flight
	alone  bool               // it shared a transaction that did not decide it
}

// do sends a request in its turn and returns its error. After an error of the wait
// itself, send may still run.
func (s *Store) do(ctx context.Context, op *store.Op, key flowKey) error {
	if ctx.Err() != nil {
		return store.EndedContext(ctx)
	}
	s.mu.Lock()
	f, queued := s.flows[key], s.lane.Waiting(key.Slot)
	if f != nil {
		queued += len(f.calls)
	}
	err := s.room.Enter(queued)
	if s.closed && err == nil {
		s.room.Exit()
		err = store.ErrClosed
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	defer s.room.Exit()
	c := &call{Store: s, op: op, key: key, ticket: s.ticket()}
	c.ticket.State = waiting.Locked
	if key.reads || !s.lane.Join(key.Slot, c) {
		s.enqueue(c)
	}
	s.mu.Unlock()
	if err := c.ticket.Wait(ctx); err != nil {
		c.left()
		return err
	}
	s.tickets.Put(c.ticket)
	if c.err == nil {
		op.Rows = 1 + c.beside
	}
	return c.err
}

// ticket begins a wait. s.mu is locked.
func (s *Store) ticket() *waiting.Ticket {
	t, ok := s.tickets.Get().(*waiting.Ticket)
	if !ok {
		t = waiting.NewTicket()
	}
	s.watch.Begin(t)
	return t
}

// grace is how long a statement without a timeout may go on after its caller has left.
const grace = time.Second

// left ends the statement of a caller that has left if nothing else would.
func (c *call) left() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil && c.room.Timeout() <= 0 {
		time.AfterFunc(grace, c.cancel)
	}
}

// answer gives the caller its answer.
func (c *call) answer(err error) {
	if c.err = err; err == nil && c.op.Known != nil && c.op.Outcome.Decided {
		c.granted, c.denied = c.op.Granted(), !c.op.Granted()
	}
	if !c.ticket.Answer() && err == nil && c.op.Late != nil && c.op.Granted() {
		c.op.Late()
	}
}

// enqueue puts a call into its key's flow. s.mu is locked.
func (s *Store) enqueue(c *call) {
	c.ticket.State = waiting.Queued
	f := s.flows[c.key]
	if f == nil {
		f = &flow{key: c.key}
		s.flows[c.key] = f
	}
	f.calls = append(f.calls, c)
	if f.key.reads {
		s.reads++
	}
	s.list(f)
	s.start()
}

// start starts another goroutine that sends, if there may be one. s.mu is locked.
func (s *Store) start() {
	if s.running < s.most {
		s.running++
		go s.run()
	}
}

// list gives a flow its turn if it has a request to send. s.mu is locked.
func (s *Store) list(f *flow) {
	switch {
	case f.first():
		if !f.inTurns {
			f.inTurns = true
			s.turns = append(s.turns, f)
		}
	case f.second():
		if !f.inSeconds {
			f.inSeconds = true
			s.seconds = append(s.seconds, f)
		}
	case len(f.calls) == 0 && f.inFlight == 0 && s.flows[f.key] == f:
		delete(s.flows, f.key)
	}
}

// pop takes the first of a queue off it.
func pop[T any](queue []*T) (*T, []*T) {
	first := queue[0]
	queue[0] = nil
	return first, queue[1:]
}

// run sends requests until none waits.
func (s *Store) run() {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b batch
	for s.next(&b) {
		s.mu.Unlock()
		s.deliver(&b)
		s.mu.Lock()
		s.sortOut(&b)
	}
	s.running--
	if s.running == 0 {
		s.idle.Broadcast()
	}
}

// setAside moves calls, whose row is locked, and the requests behind them to the lane. s.mu
// is locked.
func (s *Store) setAside(f *flow, calls []*call) {
	calls = append(calls, f.calls...)
	f.calls = nil
	for _, c := range calls {
		c.ticket.State = waiting.Locked
		s.lane.Hold(c.key.Slot, c)
	}
}

// attempt sends the request once and answers it, unless its row is locked. It returns
// ErrLocked, or ErrGone if it did not send it.
func (c *call) attempt(lockWait time.Duration) error {
	if c.op.Known != nil && c.op.Known() {
		c.answer(store.ErrKnown)
		return waiting.ErrGone
	}
	ctx, cancel := c.room.Detached()
	defer cancel()
	if !c.begin(ctx, cancel) {
		return waiting.ErrGone
	}
	err := c.room.Late(ctx, c.send(ctx, lockWait))
	if err == store.ErrLocked {
		return err
	}
	c.answer(err)
	return nil
}

// begin marks the request as sent, and reports whether its caller is still there.
func (c *call) begin(ctx context.Context, cancel context.CancelFunc) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ticket.Gone() {
		return false
	}
	c.ticket.Fly(ctx)
	c.cancel = cancel
	return true
}

// Try is waiting.Task's.
func (c *call) Try(wait time.Duration) error {
	err := c.attempt(wait)
	if err == store.ErrLocked {
		c.set(waiting.Locked)
	}
	return err
}

func (c *call) set(s waiting.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ticket.State = s
}

// Left is waiting.Task's.
func (c *call) Left() time.Duration { return c.ticket.Left() }

// Again is waiting.Task's.
func (c *call) Again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enqueue(c)
}
