// Package dispatch sends the requests of concurrent callers to a database.
//
// It bounds the callers that wait. Takes share statements: while one is in flight, new ones
// queue and are sent together in the next. Results are the same as if each request had been
// sent alone, in order of arrival. All other requests are sent in separate transactions
// or shared ones, few at a time, the keys in turn. Requests for a row that another
// transaction has locked wait apart, so that they delay no others.
//
// No caller can cancel a statement in flight, which would cost its connection: a caller that
// leaves goes immediately, and the statement runs to its end.
package dispatch

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// Database is the store that sends the statements.
type Database interface {
	store.Store
	// TakeMany decides rows of different keys, in lock order, with one algorithm and one
	// Commit. now is the caller's clock, nil for the database's. After an error, rows whose
	// Outcome is Decided were still decided. The error is store.ErrLocked if a row was locked
	// for longer than the rows' LockWait, and a *store.RowError if a value in a row failed the
	// statement.
	TakeMany(ctx context.Context, rows []*store.Row, now *int64) error
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
	Locked(ctx context.Context, rows []*store.Row) (locked []bool, err error)
	// Refuses returns an error while an open circuit breaker refuses requests, and nil
	// once it admits a probe.
	Refuses() error
	// Answers returns how many statements the database has answered.
	Answers() int64
	// Exhausted reports whether all connections are in use by others than the limiter.
	Exhausted() bool
	// Shard returns the number of the key's shard, from 0, and that of all shards, at least 1.
	// They may change. A statement of TakeMany for keys of one shard costs least.
	Shard(key string) (n, of int)
	// Leaves reports whether a caller that sends a Take itself can leave it at present. Then
	// Do may return store.ErrElsewhere for a context that is its own; see package sending.
	Leaves() bool
}

// Options sets up a Dispatcher. There are no defaults.
type Options struct {
	Waiting     int           // callers that wait, at most; a quarter of them for one key
	Timeout     time.Duration // for which a caller waits; none if not positive
	Connections int           // of the pool; a quarter of them waits for locked rows
	Share       bool          // whether requests share statements and transactions
	Rows        int           // requests in one of these, at most
	Statements  int           // shared ones in flight at once for each shard, algorithm and Commit, at most
	// Shards, if positive, is into how many shards keys are hashed, instead of the Database's: a
	// statement then has one key, and one that blocks after a denial shares none.
	Shards int
	Now    func() *int64 // the caller's clock for a statement; if it returns nil, the database's
	// Obeys: a statement ends with its context. Then a caller sends its own statement if
	// nothing is in flight and it cannot leave, or can leave the statement: that costs no
	// goroutine.
	Obeys bool
}

// Dispatcher is a store.Store over a Database. An idle one has no goroutine and no timer. It
// is safe for concurrent use.
type Dispatcher struct {
	db Database
	Options
	callers atomic.Int64
	parts   atomic.Int64 // answers in transactions that may go on
	pool    sync.Pool    // of *waiter: a channel made in a test's synthetic time must stay in it

	mu       sync.Mutex
	idle     sync.Cond // nothing is in flight, and so nothing waits
	busy     int       // goroutines that send
	closed   bool
	waits    sending.Deadlines[begun]
	contexts sending.Deadlines[*sending.Context]
	queues   []*shardQueues // of Takes that share statements, by their key's shard
	seed     maphash.Seed   // of Shards
	serial   serials
	locked   lockedKeys
}

// New returns a Dispatcher over db.
func New(db Database, o Options) *Dispatcher {
	d := &Dispatcher{db: db, Options: o, seed: maphash.MakeSeed()}
	if d.Shards > 0 {
		d.Rows, d.Statements = 1, 1
	}
	d.idle.L = &d.mu
	d.waits, d.contexts = sending.NewDeadlines[begun](&d.mu), sending.NewDeadlines[*sending.Context](&d.mu)
	d.locked.most = max(1, o.Connections/4)
	d.locked.keys = map[key]*lockedKey{}
	d.serial.most = max(1, o.Connections-d.locked.most)
	d.serial.keys = map[key]*serial{}
	return d
}

// Do is store.Store's. If ctx or the timeout ends before op was sent, it is not; if it is in
// flight, it may be carried out.
//
// A Settle waits for its turn with the others for its key, whose row it locks after the
// reservation. If another transaction has locked the reservation, it waits for that, since
// the key's row may be free for others.
func (d *Dispatcher) Do(ctx context.Context, op *store.Op) error {
	for k := keyOf(op); ; k = (key{key: op.Reservation().Public()}) {
		if ctx.Err() != nil {
			return store.EndedContext(ctx)
		}
		d.mu.Lock()
		err := d.admit(k, op)
		if err != nil {
			d.mu.Unlock()
			return err
		}
		w := d.begin(op, k)
		if q := d.queue(op); d.join(w) {
			d.mu.Unlock()
		} else if q != nil && q.inFlight == 0 && d.Obeys && (ctx.Done() == nil || d.db.Leaves()) {
			d.sendOwn(ctx, q, w)
		} else {
			d.enqueue(w)
			d.mu.Unlock()
		}
		if err = w.wait(ctx); err != nil {
			d.left(w)
			return err
		}
		if err = w.err; err == nil {
			op.Rows = w.rows
		}
		d.callers.Add(-1)
		d.free(w)
		if err != store.ErrReservationLocked {
			return err
		}
	}
}

// enqueue queues a request to be sent. d.mu is locked.
func (d *Dispatcher) enqueue(w *waiter) {
	w.state = queued
	if q := d.queue(w.op); q != nil {
		q.add(w)
	} else {
		d.serial.add(d, w)
	}
}

// start runs send in another goroutine. d.mu is locked.
func (d *Dispatcher) start(send func()) {
	d.busy++
	go send()
}

// done ends a goroutine that sends. d.mu is locked.
func (d *Dispatcher) done() {
	if d.busy--; d.busy == 0 {
		d.idle.Broadcast()
	}
}

// Close makes later requests return ErrClosed if nothing waits or is in flight and settled,
// which may be nil, returns true. It reports whether that was so.
func (d *Dispatcher) Close(settled func() bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = d.closed || d.busy == 0 && (settled == nil || settled())
	return d.closed
}

// AwaitIdle waits until no request waits or is in flight.
func (d *Dispatcher) AwaitIdle() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.busy > 0 {
		d.idle.Wait()
	}
}

// minShare is the number of callers of one key that may wait in any case.
const minShare = 64

// share returns the number of callers that may wait for one key.
func (d *Dispatcher) share() int { return min(d.Waiting, max(minShare, d.Waiting/4)) }

// Callers returns the number of callers that wait now.
func (d *Dispatcher) Callers() int { return int(d.callers.Load()) }

// Refuses returns an error while an open circuit breaker refuses requests.
func (d *Dispatcher) Refuses() error { return d.db.Refuses() }

// admit admits a caller, or returns an error. d.mu is locked.
func (d *Dispatcher) admit(k key, op *store.Op) error {
	refusal := d.db.Refuses()
	switch {
	case d.closed:
		return store.ErrClosed
	case refusal != nil:
		return refusal
	case d.waitingFor(k, op) >= d.share():
		return fmt.Errorf("%w: %d callers wait for this key (a quarter of Config.MaxWaiting)", store.ErrOverloaded, d.share())
	case d.callers.Add(1) > int64(d.Waiting):
		d.callers.Add(-1)
		return fmt.Errorf("%w: %d callers wait for the database (Config.MaxWaiting)", store.ErrOverloaded, d.Waiting)
	}
	return nil
}

// waitingFor returns the number of requests that wait for a key. d.mu is locked.
func (d *Dispatcher) waitingFor(k key, op *store.Op) (n int) {
	if h := d.locked.keys[k]; h != nil {
		n = len(h.waiters)
	}
	if q := d.queue(op); q != nil {
		if front := q.fronts[k]; front != nil {
			n += front.callers
		}
	} else if s := d.serial.keys[k]; s != nil {
		n += len(s.waiters)
	}
	return n
}

// answers returns how many statements the database has answered.
func (d *Dispatcher) answers() int64 { return d.db.Answers() + d.parts.Load() }

// late returns why a request has no answer in time. d.mu is locked.
func (d *Dispatcher) late(w *waiter, starved bool) error {
	answers := d.answers() != w.since
	switch {
	case w.state == locked:
		return store.ErrLocked
	case w.state == queued && (answers || starved):
		return fmt.Errorf("%w: the request waited behind others and was not sent: %w", store.ErrOverloaded, context.DeadlineExceeded)
	case !answers && d.db.Exhausted() && w.state == sent && (w.statement == nil || !w.statement.giveUp()):
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrExhausted, context.DeadlineExceeded)
	case !answers && d.db.Exhausted():
		return fmt.Errorf("%w: %w", store.ErrBusy, context.DeadlineExceeded)
	case answers:
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrAnswering, context.DeadlineExceeded)
	case starved:
		return fmt.Errorf("%w: %w: %w", store.ErrUnavailable, store.ErrStarved, context.DeadlineExceeded)
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded)
}
