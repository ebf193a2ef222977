// Package postgres keeps the limiter's state in a database. Each decision is one
// statement, on a connection of a pool or in the caller's transaction.
package postgres

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Store is a store.Store and a store.Many in a database. It is a small value; copies
// share their state. It is safe for concurrent use, unless InTx returned it.
type Store struct {
	runner  exec.Runner
	breaker *exec.Breaker // nil in a transaction
	txCache *exec.Cache   // of the caller's transactions
	owners  *exec.Owners
	tx      bool        // in the caller's transaction
	shares  func() bool // whether a connection can send several statements as one transaction; nil: no
	crowded func() bool // nil in a transaction
	room    *room       // of the last AllowAll; nil in a transaction
	// ahead is how far the database's clock was ahead of this machine's at the last
	// compare, in microseconds.
	ahead *atomic.Int64
}

// New returns a Store on connections. After breakAfter failures in a row its circuit
// breaker opens for breakFor, by clock, which returns microseconds. warn is called when
// prepared statements are given up, because a pooler loses them.
func New(c exec.Connections, breakAfter int64, breakFor time.Duration, clock func() int64, warn func(error)) Store {
	cache, owners := exec.NewCache(warn), exec.NewOwners()
	// The look at the owners is no answer to a statement: it is below the breaker.
	b := exec.NewBreaker(owners.Guard(exec.NewFallback(exec.NewPool(c), c, cache)), breakAfter, breakFor, clock)
	return Store{runner: b, breaker: b, txCache: cache, owners: owners, crowded: c.Crowded, ahead: new(atomic.Int64), room: newRoom(),
		shares: func() bool { return c.Pipelines() && cache.InUse() }}
}

// InTx returns the Store of a caller's transaction.
func (p Store) InTx(tx db.DBTX) Store {
	return Store{runner: p.owners.Guard(p.txCache.InTx(tx)), tx: true, ahead: p.ahead}
}

// Refuses returns an error while the circuit breaker is open.
func (p Store) Refuses() error {
	if p.breaker == nil {
		return nil
	}
	return exec.Translate(p.breaker.Refuses(), false)
}

// Answers returns how many statements the database has answered.
func (p Store) Answers() int64 {
	if p.breaker == nil {
		return 0
	}
	return p.breaker.Answers()
}

// Crowded reports whether all connections are in use by others than the limiter.
func (p Store) Crowded() bool { return p.crowded != nil && p.crowded() }

// decide runs one statement that returns an outcome. It runs it again if the database's
// clock was in another period of a calendar.
func (p Store) decide(ctx context.Context, q *store.Query, f func(context.Context, db.DBTX, *store.Query) (store.Outcome, error)) (store.Outcome, error) {
	return p.decideBy(ctx, p.runner.Do, q, f)
}

// decideBy is decide by run. f may end with ErrRolledBack once it has the outcome.
func (p Store) decideBy(ctx context.Context, run exec.Run, q *store.Query, f func(context.Context, db.DBTX, *store.Query) (store.Outcome, error)) (o store.Outcome, err error) {
	for try := 1; ; try++ {
		p.setEdges(q, q.Now)
		err = run(ctx, func(tx db.DBTX) (err error) {
			o, err = f(ctx, tx, q)
			return asLocked(q.LockWait, err)
		})
		if err == exec.ErrRolledBack {
			err = nil
		}
		if err != exec.ErrOtherPeriod {
			break
		}
		if err = p.compare(ctx, try); err != nil {
			return o, err
		}
	}
	if q.Now != nil {
		o.Now = *q.Now
	}
	return o, exec.Translate(err, p.tx)
}

// asLocked returns ErrLocked for a row that was locked for longer than a LockWait.
// Retrying the statement would not help.
func asLocked(wait time.Duration, err error) error {
	if err != nil && wait > 0 && exec.IsLockTimeout(err) {
		return store.ErrLocked
	}
	return err
}

// exec runs one statement that waits so long for a row's lock.
func (p Store) exec(ctx context.Context, wait time.Duration, f func(db.DBTX) error) error {
	return exec.Translate(p.runner.Do(ctx, func(tx db.DBTX) error { return asLocked(wait, f(tx)) }), p.tx)
}

// Take grants as many steps as fit.
func (p Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return p.decide(ctx, q, statement.Of(q.Algorithm).Take)
}

// Charge adds units up to the burst.
func (p Store) Charge(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return p.decide(ctx, q, statement.Of(q.Algorithm).Charge)
}

// Refund gives units back, at most those in use.
func (p Store) Refund(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return p.decide(ctx, q, statement.Of(q.Algorithm).Refund)
}

// Undo gives back what is left of units that were counted in g.
func (p Store) Undo(ctx context.Context, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
	return p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		return statement.Of(q.Algorithm).Undo(ctx, tx, q, g)
	})
}

// Get reads the key's state.
func (p Store) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return p.decide(ctx, q, statement.Of(q.Algorithm).Get)
}

// Usage reads the key's state and its open reservations.
func (p Store) Usage(ctx context.Context, q *store.Query) (u store.Usage, err error) {
	u.Outcome, err = p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *store.Query) (_ store.Outcome, err error) {
		u, err = statement.Of(q.Algorithm).Usage(ctx, tx, q)
		return u.Outcome, err
	})
	return u, err
}

// Block blocks the key.
func (p Store) Block(ctx context.Context, q *store.Query, forUs int64) error {
	blocked := *q
	blocked.BlockFor = forUs
	return p.exec(ctx, q.LockWait, func(tx db.DBTX) error {
		return statement.Of(q.Algorithm).Block(ctx, tx, &blocked)
	})
}

// Unblock lifts the block that ends at until; any block if until is 0.
func (p Store) Unblock(ctx context.Context, q *store.Query, until int64) error {
	return p.exec(ctx, q.LockWait, func(tx db.DBTX) error {
		return statement.Of(q.Algorithm).Unblock(ctx, tx, q, until)
	})
}

// Reset deletes the row and frees the key's reservations. A Reserve that had locked the
// row when the first statement began has made a reservation that only a second statement
// sees. None can be made after that: it would wait for the deleted row.
func (p Store) Reset(ctx context.Context, q *store.Query) error {
	err := p.runner.Within(ctx, func(tx db.DBTX) error {
		deleted, err := statement.Of(q.Algorithm).Reset(ctx, tx, q)
		if err != nil || deleted == 0 {
			return asLocked(q.LockWait, err)
		}
		err = statement.Queries.ReservationsFree(ctx, tx, db.ReservationsFreeParams{Policy: q.Policy, Key: q.Key, Algorithm: string(q.Algorithm)})
		return asLocked(q.LockWait, err)
	})
	return exec.Translate(err, p.tx)
}

// Leave gives a place in a queue back if no later request has one.
func (p Store) Leave(ctx context.Context, q *store.Query, ticket int64) (left bool, err error) {
	err = p.exec(ctx, q.LockWait, func(tx db.DBTX) error {
		rows, err := statement.Queries.LeakyBucketQueueLeave(ctx, tx, db.LeakyBucketQueueLeaveParams{
			Policy: q.Policy, Key: q.Key, Ticket: ticket, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: statement.WaitText(q.LockWait),
		})
		left = rows > 0
		return err
	})
	return left, err
}

// TakeMany decides rows of many keys in one statement. It sends rows again for which the
// database's clock was in another period of a calendar.
func (p Store) TakeMany(ctx context.Context, rows []*store.Row, now *int64) error {
	t := statement.Of(rows[0].Query.Algorithm)
	for try := 1; ; try++ {
		for _, r := range rows {
			p.setEdges(r.Query, now)
		}
		err := p.runner.Do(ctx, func(tx db.DBTX) error {
			return asLocked(rows[0].Query.LockWait, t.TakeMany(ctx, tx, rows, now))
		})
		switch {
		case exec.IsDataError(err):
			return &store.RowError{Err: exec.Translate(err, p.tx)}
		case err != exec.ErrOtherPeriod:
			return exec.Translate(err, p.tx)
		}
		if err = p.compare(ctx, try); err != nil {
			return err
		}
		undecided := make([]*store.Row, 0, len(rows))
		for _, r := range rows {
			if !r.Outcome.Decided {
				undecided = append(undecided, r)
			}
		}
		rows = undecided
	}
}

// Locked marks the rows that other transactions have locked.
func (p Store) Locked(ctx context.Context, rows []*store.Row) (locked []bool, err error) {
	err = p.exec(ctx, 0, func(tx db.DBTX) (err error) {
		locked, err = statement.Of(rows[0].Query.Algorithm).Locked(ctx, tx, rows)
		return err
	})
	return locked, err
}

// The database's clock selects the period of a calendar, and this process knows the
// edges of periods. So a statement gets the edges of two successive periods and uses the
// one that its clock is in. If it is in neither, because the clocks are hours apart or a
// batch has waited that long, it counts nothing. Then the clocks are compared and the
// statement is sent again. Edges are three numbers and not an array, which was slower for
// one row and would have to be split among the rows of a batch.

// maxCompared is the number of times that one decision compares the clocks before it
// fails. One is enough, unless a clock is being set.
const maxCompared = 3

// setEdges sets the edges of a calendar's query. now is the caller's clock, if that
// decides.
func (p Store) setEdges(q *store.Query, now *int64) {
	if q.Calendar == nil {
		return
	}
	at := time.Now().UnixMicro() + p.ahead.Load()
	if now != nil {
		at = *now
	}
	q.Edges.From, q.Edges.Turn, q.Edges.Until = q.Calendar.Near(at)
}

// compare records how far the database's clock is ahead of this machine's, for this query
// and later ones. times is the number of calls for this decision.
func (p Store) compare(ctx context.Context, times int) error {
	here := time.Now()
	var there int64
	err := p.runner.Do(ctx, func(tx db.DBTX) (err error) {
		there, err = statement.Queries.Clock(ctx, tx, nil)
		return err
	})
	if err != nil {
		return exec.Translate(err, p.tx)
	}
	p.ahead.Store(there - here.UnixMicro())
	if times == maxCompared {
		return fmt.Errorf("%w: its clock, at %s, was in another calendar period than expected on each of several tries; this machine's is at %s", store.ErrUnavailable,
			time.UnixMicro(there).UTC().Format(time.RFC3339Nano), here.UTC().Format(time.RFC3339Nano))
	}
	return nil
}
