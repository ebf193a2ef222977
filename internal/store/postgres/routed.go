package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Behind a router of shards each statement names one policy and one key as bare parameters,
// in VALUES or in WHERE, and has one answer before the next is sent. A router may send a
// statement whose key it does not find to any server, where it would count a second time.
// So there are no statements for many keys and none without a key, and what is one statement
// of several tables elsewhere is a transaction here.

// errManyKeys: a statement for many keys would have been sent to a router.
var errManyKeys = fmt.Errorf("%w: Config.Sharding is %q: a statement cannot have several keys", store.ErrUnsupported, store.ShardingRouter)

// errRecords: a policy has marks, sums or a ledger.
func errRecords(q *store.Query) error {
	return fmt.Errorf("%w: Marks, UsageBy or Ledger of policy %s with Config.Sharding %q: a statement of two tables reaches one server only", store.ErrUnsupported, store.Quote(q.Policy), store.ShardingRouter)
}

// oneKey returns an error if the groups have several keys, or one records.
func oneKey(groups []*store.Group) error {
	for _, g := range groups {
		if first := groups[0]; g.Key != first.Key {
			return fmt.Errorf("%w: requests[%d].Key %s and requests[%d].Key %s may be on different servers, since Config.Sharding is %q: give all requests one Key under several policies, or let Citus distribute the tables",
				store.ErrUnsupported, first.Index, store.Quote(first.Key), g.Index, store.Quote(g.Key), store.ShardingRouter)
		}
		if g.Records() {
			return errRecords(&g.Query)
		}
	}
	return nil
}

// clockOf reads the clock of the server that has q's key.
func (p Store) clockOf(ctx context.Context, tx db.DBTX, q *store.Query) (us int64, err error) {
	get := store.Op{Kind: store.Get, Query: *q}
	get.Now = nil
	err = p.send(ctx, &get)(tx)
	return get.Outcome.Now, err
}

// errGrantOnce: a Grant that is remembered would be a statement of two tables.
var errGrantOnce = fmt.Errorf("%w: an IdempotencyKey of Grant with Config.Sharding %q", store.ErrUnsupported, store.ShardingRouter)

// reserveRouted decides in a transaction. In the caller's, prepare has looked for an earlier
// admission.
func (p Store) reserveRouted(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (o store.Outcome, overdue bool, err error) {
	looks := a.Idempotency != "" && !p.tx
	if looks {
		if b, err := readBefore(ctx, tx, q, a); err != nil || b != nil {
			return b.instead(err)
		}
	}
	take := store.Op{Kind: store.Take, Query: *q}
	if err = p.send(ctx, &take)(tx); err != nil {
		return store.Outcome{}, false, err
	}
	if o = take.Outcome; !denied(&o) {
		return o, false, statement.Queries.ReservationAdd(ctx, tx, added(q, a, &o))
	}
	if looks { // it may have been admitted while the Take waited for the row
		if b, err := readBefore(ctx, tx, q, a); err != nil || b != nil {
			return b.instead(err)
		}
	}
	return o, false, nil
}

// added returns the row of an admission that has the outcome o.
func added(q *store.Query, a *store.Admission, o *store.Outcome) db.ReservationAddParams {
	at := o.UpdatedAt
	row := db.ReservationAddParams{
		Policy: q.Policy, Key: q.Key, ID: a.ID, State: string(a.State), Algorithm: string(q.Algorithm),
		Reserved: float64(q.Cost * o.Granted), Level: o.View.Level(&q.Rules, at), LimitUnits: a.Limit, Burst: q.Burst, Capacity: q.Capacity,
		TickUs: 1, CountedAtUs: at, CreatedAtUs: at, ExpiresAtUs: at + a.TTL, ForgetAtUs: at + a.TTL + a.Remember,
	}
	if a.Requested != 0 {
		row.Requested = &a.Requested
	}
	if a.Estimate != 0 && o.Granted == q.Count {
		row.Estimate = &a.Estimate
	}
	if a.Idempotency != "" {
		row.IdempotencyKey = &a.Idempotency
	}
	switch counted := o.View.Counted(at); q.Algorithm.Family() {
	case algorithm.Windows, algorithm.Counters:
		row.PeriodUs, row.EndsAtUs = q.Period, counted.EndsAt
	case algorithm.Logs:
		row.PeriodUs = q.Period
	default:
		row.Leak, row.CountedAtUs = q.Leak, counted.At
		if q.Algorithm == algorithm.LeakyBucket {
			row.TickUs = q.Tick
		}
	}
	return row
}

// settleRouted is settleOnce. It returns ErrReservationLocked if it waited for that.
func (p Store) settleRouted(ctx context.Context, op *store.Op) error {
	held := false
	err := p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
		op.Ended, held = nil, false
		e, err := hold(ctx, tx, op)
		if err != nil || e == nil {
			return statement.AsLocked(ctx, op.LockWait, err)
		}
		held, op.Ended = true, e
		return statement.AsLocked(ctx, op.LockWait, p.end(ctx, tx, op))
	})
	if err == store.ErrLocked && !held {
		err = store.ErrReservationLocked
	}
	return found(op, exec.Translate(err, p.tx))
}

// hold locks a Settle's reservation and reads it, or returns nil if there is none.
func hold(ctx context.Context, tx db.DBTX, op *store.Op) (*store.Ended, error) {
	row, err := statement.Queries.ReservationHold(ctx, tx, db.ReservationHoldParams{
		NowUs: op.Now, Policy: op.Policy, Key: op.Key, ID: op.ID, Algorithm: string(op.Algorithm),
		LockTimeout: statement.WaitText(op.LockWait), Commit: string(op.Commit),
	})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && row.ForgetAtUs <= row.NowUs && op.State != store.Expired {
		return nil, nil
	}
	e := &store.Ended{
		Reservation: store.Reservation{
			ReservationID: op.Reservation(),
			Rules:         algorithm.Rules{Burst: row.Burst, Capacity: row.Capacity, Leak: row.Leak, Tick: row.TickUs, Period: row.PeriodUs},
			Limit:         row.LimitUnits, State: store.State(row.State), Reserved: row.Reserved, Units: row.Units,
			EndsAt: row.EndsAtUs, CountedAt: row.CountedAtUs, ExpiresAt: row.ExpiresAtUs,
		},
		Now: row.NowUs,
	}
	e.Changed = e.Changes(op.State, e.Now)
	return e, err
}

// end ends the reservation that hold has locked, and sets the outcome of the op's Ended.
func (p Store) end(ctx context.Context, tx db.DBTX, op *store.Op) error {
	e, back := op.Ended, 0.0
	var err error
	if over := e.Algorithm.Family() == algorithm.Windows && e.EndsAt <= e.Now; e.Changed && op.Units != e.Units && !over {
		back, err = statement.Call{Context: ctx, Op: op}.Adjust(tx)
		e.Freed = back > 0
	} else {
		get := store.Op{Kind: store.Get, Query: store.Query{Rules: e.Rules, Algorithm: e.Algorithm, Policy: e.Policy, Key: e.Key, Now: &e.Now}}
		err = p.send(ctx, &get)(tx)
		e.Outcome = get.Outcome
	}
	if err != nil || !e.Changed {
		return err
	}
	units := op.Units
	if op.State != store.Settled {
		units = e.Units - back
	}
	return statement.Queries.ReservationEnd(ctx, tx, db.ReservationEndParams{State: string(op.State), Units: units, Policy: op.Policy, Key: op.Key, ID: op.ID})
}
