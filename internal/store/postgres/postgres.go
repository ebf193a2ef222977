// Package postgres keeps the limiter's state in a database. Each decision is one
// statement, on a connection of a pool or in the caller's transaction.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Store is a store.Store in a database. It is a small value; copies
// share their state. It is safe for concurrent use, unless InTx returned it.
type Store struct {
	runner    exec.Runner
	breaker   *exec.Breaker // nil in a transaction
	txCache   *exec.Cache   // of the caller's transactions
	owners    *exec.Owners
	tx        bool        // in the caller's transaction
	differs   *bool       // whether its lock_timeout was brought to nodes of a cluster
	shares    func() bool // whether a connection can send several statements as one transaction; nil: no
	exhausted func() bool // nil in a transaction
	leaves    func() bool // whether a caller can leave a statement; nil: no
	headroom  *headroom   // of the last AllowAll; nil in a transaction and behind a router
	routed    bool        // a router of shards reads the statements: see routed.go
	// ahead is how far the database's clock was ahead of this machine's at the last
	// compare, in microseconds.
	ahead *atomic.Int64
}

// New returns a Store on connections. After breakAfter failures in a row its circuit
// breaker opens for breakFor, by clock, which returns microseconds. warn is called when
// prepared statements are given up, because a pooler loses them.
func New(c exec.Connections, s store.Sharding, breakAfter int64, breakFor time.Duration, clock func() int64, warn func(error)) Store {
	cache, owners := exec.NewCache(warn), exec.NewOwners(s)
	b := exec.NewBreaker(breakAfter, breakFor, clock)
	pool := exec.NewPool(c, cache).Guard(b, owners)
	if s == store.ShardingRouter {
		return Store{runner: pool, leaves: pool.Leaves, breaker: b, txCache: cache, owners: owners, exhausted: c.Exhausted, ahead: new(atomic.Int64), routed: true}
	}
	return Store{runner: pool, leaves: pool.Leaves, breaker: b, txCache: cache, owners: owners, exhausted: c.Exhausted, ahead: new(atomic.Int64), headroom: newHeadroom(),
		shares: func() bool { return owners.Shards() == nil && c.Pipelines() && cache.InUse() }}
}

// InTx returns the Store of a caller's transaction.
func (p Store) InTx(tx db.DBTX) Store {
	return Store{runner: p.owners.Guard(p.txCache.InTx(tx)), owners: p.owners, tx: true, differs: new(bool), ahead: p.ahead, routed: p.routed}
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

// Exhausted reports whether all connections are in use by others than the limiter.
func (p Store) Exhausted() bool { return p.exhausted != nil && p.exhausted() }

// Leaves reports whether the caller of a Take can leave it at present; see
// store.ErrElsewhere.
func (p Store) Leaves() bool { return p.leaves != nil && p.leaves() }

// Do is store.Store's.
func (p Store) Do(ctx context.Context, op *store.Op) (err error) {
	if p.tx {
		if err := p.bringLockTimeout(ctx, op); err != nil {
			return err
		}
	}
	switch op.Algorithm {
	case algorithm.Attempts:
		return p.attempts(ctx, op)
	case algorithm.Concurrency:
		return p.slots(ctx, op)
	}
	if p.routed && op.Records() {
		return errRecords(&op.Query)
	}
	if p.routed && op.Algorithm == algorithm.Balance && (op.Kind == store.Settle || op.Kind == store.Reserve && op.Admission.State == store.Open) {
		return fmt.Errorf("%w: a reservation of a balance with Config.Sharding %q: use AllowN, and Refund what was not spent", store.ErrUnsupported, store.ShardingRouter)
	}
	switch op.Kind {
	case store.TakeAll, store.GetAll, store.TakeAny:
		return p.takeAll(ctx, op)
	case store.Reserve:
		return p.reserve(ctx, op)
	case store.Grant:
		if op.Admission != nil {
			return p.reserve(ctx, op)
		}
	case store.Settle:
		return p.settle(ctx, op)
	case store.SettleAll:
		return p.settleAll(ctx, op)
	case store.Reset:
		return p.reset(ctx, op)
	case store.Due:
		return p.due(ctx, op)
	case store.NextDue:
		return p.nextDue(ctx, op)
	case store.Estimate:
		return p.estimate(ctx, op)
	case store.Permit:
		return p.permit(ctx, op)
	}
	for try := 1; ; try++ {
		p.setEdges(&op.Query, op.Now)
		err = p.runner.Run(ctx, exec.Statement, p.send(ctx, op))
		if err != exec.ErrOtherPeriod {
			return exec.Translate(err, p.tx)
		}
		if err = p.compare(ctx, try, &op.Query); err != nil {
			return err
		}
	}
}

// send returns the call of an op for one key.
func (p Store) send(ctx context.Context, op *store.Op) exec.Call {
	return func(tx db.DBTX) error { return statement.Call{Context: ctx, Op: op}.Send(p.at(tx, op.Key)) }
}

// due reads the key's reservations that have expired.
func (p Store) due(ctx context.Context, op *store.Op) error {
	return p.exec(ctx, 0, op.Key, func(tx db.DBTX) (err error) {
		op.IDs, err = statement.Queries.ReservationsDue(ctx, tx, db.ReservationsDueParams{
			Policy: op.Policy, Key: op.Key, Algorithm: string(op.Algorithm), NowUs: op.Now, MaxRows: store.MaxDue,
		})
		return err
	})
}

// estimate reads what the key's last estimates have spent.
func (p Store) estimate(ctx context.Context, op *store.Op) error {
	return p.exec(ctx, 0, op.Key, func(tx db.DBTX) (err error) {
		op.Factor, err = statement.Queries.ReservationEstimate(ctx, tx, db.ReservationEstimateParams{
			Policy: op.Policy, Key: op.Key, Algorithm: string(op.Algorithm), NowUs: op.Now,
		})
		return err
	})
}

// nextDue reads when the next reservation expires. Behind a router one may have expired.
func (p Store) nextDue(ctx context.Context, op *store.Op) error {
	if p.routed {
		op.Wait = -1
		return nil
	}
	return p.exec(ctx, 0, "", func(tx db.DBTX) error {
		row, err := statement.Queries.ReservationsNext(ctx, tx)
		op.Wait = store.NoneDue
		if row.ExpiresAtUs != store.NoneDue {
			op.Wait = row.ExpiresAtUs - row.NowUs
		}
		return err
	})
}

// exec runs one statement for a key, or for all keys if that is empty, which waits so long
// for a row's lock.
func (p Store) exec(ctx context.Context, wait time.Duration, key string, f func(db.DBTX) error) error {
	return exec.Translate(p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		if key != "" {
			tx = p.at(tx, key)
		}
		return statement.AsLocked(ctx, wait, f(tx))
	}), p.tx)
}

// reset deletes the row and frees the key's reservations. A Reserve that had locked the
// row when the first statement began has made a reservation that only a second statement
// sees. None can be made after that: it would wait for the deleted row.
func (p Store) reset(ctx context.Context, op *store.Op) error {
	err := p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
		err := p.resetRow(ctx, tx, op)
		if err == nil && op.Allowed {
			err = p.free(ctx, tx, op)
		}
		return statement.AsLocked(ctx, op.LockWait, err)
	})
	return exec.Translate(err, p.tx)
}

// resetRow frees the reservations that it sees, and deletes the row.
func (p Store) resetRow(ctx context.Context, tx db.DBTX, op *store.Op) (err error) {
	if !p.routed {
		return p.send(ctx, op)(tx)
	}
	if err = p.free(ctx, tx, op); err == nil {
		op.Allowed, err = statement.Call{Context: ctx, Op: op}.Delete(tx)
	}
	return err
}

// free frees the key's reservations.
func (p Store) free(ctx context.Context, tx db.DBTX, op *store.Op) error {
	return statement.Queries.ReservationsFree(ctx, p.at(tx, op.Key), db.ReservationsFreeParams{Policy: op.Policy, Key: op.Key, Algorithm: string(op.Algorithm)})
}

// TakeMany decides rows of different keys, in lock order, with one algorithm and one
// Commit, in one statement. now is the caller's clock, nil for the database's. It sends rows
// again for which the database's clock was in another period of a calendar.
//
// After an error, rows whose Outcome is Decided were still decided. The error is
// store.ErrLocked if a row was locked for longer than the rows' LockWait, and a
// *store.RowError if a value in a row failed the statement.
func (p Store) TakeMany(ctx context.Context, rows []*store.Row, now *int64) error {
	if p.routed {
		return errManyKeys
	}
	t := statement.Of(rows[0].Query.Algorithm)
	for try := 1; ; try++ {
		for _, r := range rows {
			p.setEdges(r.Query, now)
		}
		err := p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
			return statement.AsLocked(ctx, rows[0].Query.LockWait, p.takeMany(ctx, tx, t, rows, now))
		})
		switch {
		case exec.IsDataError(err):
			return &store.RowError{Err: exec.Translate(err, p.tx)}
		case err != exec.ErrOtherPeriod:
			return exec.Translate(err, p.tx)
		}
		if err = p.compare(ctx, try, nil); err != nil {
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
	if p.routed {
		return nil, errManyKeys
	}
	err = exec.Translate(p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
		locked, err = p.lockedRows(ctx, tx, rows)
		return err
	}), p.tx)
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
func (p Store) compare(ctx context.Context, times int, q *store.Query) error {
	here := time.Now()
	var there int64
	err := p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
		if p.routed {
			there, err = p.clockOf(ctx, tx, q)
		} else {
			there, err = statement.Queries.Clock(ctx, tx, nil)
		}
		return err
	})
	if err != nil {
		return exec.Translate(err, p.tx)
	}
	p.ahead.Store(there - here.UnixMicro())
	if times == maxCompared {
		return fmt.Errorf("%w: the database answered, but its clock, at %s, was in another calendar period than expected on each of several tries; this machine's is at %s: correct both", store.ErrMisconfigured,
			time.UnixMicro(there).UTC().Format(time.RFC3339Nano), here.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// Pipelines reports whether a connection can send several statements as one transaction:
// database/sql has no pipelines, and pgx none without prepared statements.
func (p Store) Pipelines() bool { return p.shares != nil && p.shares() }

// Pipeline carries ops out as one transaction in one round trip and returns their errors.
// Ops that lock rows are in lock order, and have one Commit and the LockWait wait. Each runs
// twice, first to record its statement and then to read its answer. PostgreSQL makes one
// transaction of the statements between two Syncs. A statement sees what those before it
// have written. Ops about slots may share a statement. An op that needs another one after a statement that changed nothing has the
// error store.ErrAlone.
//
// After a *store.PartError nothing was decided, and after store.ErrAlone nothing was sent.
// After any other error the ops may have been carried out.
func (p Store) Pipeline(ctx context.Context, wait time.Duration, ops []*store.Op) ([]error, error) {
	errs := make([]error, len(ops))
	failed, all := -1, statements(ops)
	err := p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
		failed, err = exec.Pipeline(ctx, tx, len(all), func(n int, tx db.DBTX) {
			if i := all[n][0]; len(all[n]) == 1 {
				errs[i] = Store{runner: exec.InTx(tx), ahead: p.ahead}.Do(ctx, ops[i])
			} else {
				slotsTogether(ctx, tx, ops, all[n], errs)
			}
		})
		return statement.AsLocked(ctx, wait, err)
	})
	switch {
	case err == nil:
		return errs, nil
	case errors.Is(err, exec.ErrNoPipeline): // at last; a try before was rolled back
		return nil, store.ErrAlone
	case failed >= 0:
		return nil, &store.PartError{Index: all[failed][0], Err: exec.Translate(err, false)}
	}
	return nil, exec.Translate(err, false)
}
