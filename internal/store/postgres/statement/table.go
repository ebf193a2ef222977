// Package statement calls the generated statements. It converts queries into their
// parameters and their rows into outcomes.
package statement

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Queries are the generated statements.
var Queries = db.New()

// decision is a statement that returns one row.
type decision = func(context.Context, db.DBTX, *store.Query) (store.Outcome, error)

// Table has the statements of one algorithm. A LeakyBucketQueue has no Refund, Undo or
// Settle.
type Table struct {
	Take, Charge, Refund, Get decision
	Undo                      func(context.Context, db.DBTX, *store.Query, algorithm.Grant) (store.Outcome, error)
	Usage                     func(context.Context, db.DBTX, *store.Query) (store.Usage, error)
	Reserve                   func(context.Context, db.DBTX, *store.Query, *store.Admission) (store.Outcome, error)
	Settle                    func(context.Context, db.DBTX, db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error)
	Block                     func(context.Context, db.DBTX, db.TokenBucketBlockParams) error
	Unblock                   func(context.Context, db.DBTX, db.TokenBucketUnblockParams) error
	Reset                     func(context.Context, db.DBTX, db.TokenBucketResetParams) (int64, error)
	Locked                    func(context.Context, db.DBTX, db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error)
	takeMany                  func(context.Context, db.DBTX, *batch) error
	binary                    *inBinary
}

// Of returns the statements of an algorithm.
func Of(a algorithm.Name) *Table { return tables[a] }

var tables = map[algorithm.Name]*Table{
	algorithm.LeakyBucket:          &leakyBucket,
	algorithm.LeakyBucketQueue:     &leakyBucketQueue,
	algorithm.TokenBucket:          &tokenBucket,
	algorithm.GCRA:                 &gcra,
	algorithm.FixedWindow:          &fixedWindow,
	algorithm.SlidingWindowCounter: &slidingWindowCounter,
	algorithm.SlidingWindowLog:     &slidingWindowLog,
}

// TakeMany runs one statement for rows of one algorithm and leaves the outcomes in
// them. now is the caller's clock, nil for the database's.
func (t *Table) TakeMany(ctx context.Context, tx db.DBTX, rows []*store.Row, now *int64) error {
	if sent, err := t.binary.many(ctx, tx, rows, now); sent {
		return err
	}
	b := batches.Get().(*batch)
	defer batches.Put(b)
	b.set(rows, now)
	return t.takeMany(ctx, tx, b)
}

// TakeManyLater returns TakeMany as a function that may be called more than once: a
// pipeline keeps the parameters from the first call until it is sent.
func (t *Table) TakeManyLater(rows []*store.Row, now *int64) func(context.Context, db.DBTX) error {
	b := new(batch)
	b.set(rows, now)
	return func(ctx context.Context, tx db.DBTX) error { return t.takeMany(ctx, tx, b) }
}

// batch is the rows of a TakeMany as arrays. Each algorithm uses only some of them. An
// array other than keys has one element if all rows have the same.
type batch struct {
	rows []*store.Row

	policies, keys                    []string
	costs, counts, capacities, leaks  []float64
	ticks, periods, lifetimes, blocks []int64
	aligned                           []bool
	froms, turns, untils              []int64 // empty, or up to the last row of a calendar

	now         *int64
	commit      string
	lockTimeout string

	found int // the index after the row that was found last
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// set makes the arrays from rows.
func (b *batch) set(rows []*store.Row, now *int64) {
	*b = batch{
		rows:     rows,
		policies: b.policies[:0], keys: b.keys[:0],
		costs: b.costs[:0], counts: b.counts[:0], capacities: b.capacities[:0], leaks: b.leaks[:0],
		ticks: b.ticks[:0], periods: b.periods[:0], lifetimes: b.lifetimes[:0], blocks: b.blocks[:0],
		aligned: b.aligned[:0],
		froms:   b.froms[:0], turns: b.turns[:0], untils: b.untils[:0],
		now: now, commit: string(rows[0].Query.Commit), lockTimeout: WaitText(rows[0].Query.LockWait),
	}
	for i, r := range rows {
		q := r.Query
		b.policies = append(b.policies, q.Policy)
		b.keys = append(b.keys, q.Key)
		b.costs = append(b.costs, q.Cost)
		b.counts = append(b.counts, float64(r.Count))
		b.capacities = append(b.capacities, q.Capacity)
		b.lifetimes = append(b.lifetimes, q.Lifetime)
		b.blocks = append(b.blocks, q.BlockFor)
		switch q.Algorithm {
		case algorithm.LeakyBucket:
			b.leaks = append(b.leaks, q.Leak)
			b.ticks = append(b.ticks, q.Tick)
		case algorithm.FixedWindow:
			b.periods = append(b.periods, q.Period)
			b.aligned = append(b.aligned, q.Aligned)
			if q.Calendar != nil {
				b.setEdges(i, q.Edges)
			}
		case algorithm.SlidingWindowCounter, algorithm.SlidingWindowLog:
			b.periods = append(b.periods, q.Period)
		default:
			b.leaks = append(b.leaks, q.Leak)
		}
	}
	b.policies = one(b.policies)
	b.costs, b.counts, b.capacities, b.leaks = one(b.costs), one(b.counts), one(b.capacities), one(b.leaks)
	b.ticks, b.periods, b.lifetimes, b.blocks = one(b.ticks), one(b.periods), one(b.lifetimes), one(b.blocks)
	b.aligned = one(b.aligned)
	b.froms, b.turns, b.untils = one(b.froms), one(b.turns), one(b.untils)
}

// one returns the first element if all are equal: it counts for all rows. Otherwise it
// returns s.
func one[T comparable](s []T) []T {
	for _, v := range s {
		if v != s[0] {
			return s
		}
	}
	return s[:min(1, len(s))]
}

// setEdges sets the calendar of row i. Rows without a calendar ignore these arrays,
// which are empty unless there are calendars.
func (b *batch) setEdges(i int, e store.Edges) {
	for len(b.turns) < i {
		b.froms, b.turns, b.untils = append(b.froms, 0), append(b.turns, 0), append(b.untils, 0)
	}
	b.froms, b.turns, b.untils = append(b.froms, e.From), append(b.turns, e.Turn), append(b.untils, e.Until)
}

// put sets the outcome of the row of a key.
func (b *batch) put(policy, key string, o store.Outcome) {
	if r := b.row(policy, key); r != nil {
		b.answer(r, o)
	}
}

// row returns the row of a key, or nil. Rows come back in any order, but mostly in that
// of the arrays.
func (b *batch) row(policy, key string) *store.Row {
	n := len(b.rows)
	for i := range n {
		j := (b.found + i) % n
		if b.keys[j] == key && b.rows[j].Query.Policy == policy {
			b.found = j + 1
			return b.rows[j]
		}
	}
	return nil
}

func (b *batch) answer(r *store.Row, o store.Outcome) {
	if b.now != nil {
		o.Now = *b.now
	}
	r.Outcome = o
}

// done checks that each row has its outcome.
func (b *batch) done(err error) error {
	if err != nil {
		return err
	}
	return allDecided(b.rows)
}

// allDecided checks that each row has its outcome.
func allDecided(rows []*store.Row) error {
	for _, r := range rows {
		if r.Outcome.Decided {
			continue
		}
		if r.Query.Calendar != nil {
			return exec.ErrOtherPeriod
		}
		return fmt.Errorf("no row returned for policy %s and key %s", store.Quote(r.Query.Policy), store.Quote(r.Query.Key))
	}
	return nil
}

// taken returns the outcome of a statement that took units or gave units back. granted is
// negative if the key was blocked.
func taken(granted float64, updatedAt, blockedUntil int64, view algorithm.View) store.Outcome {
	return store.Outcome{
		Decided: true, Granted: max(0, granted), Blocked: granted < 0,
		Now: updatedAt, UpdatedAt: updatedAt, BlockedUntil: blockedUntil, View: view,
	}
}

// continued returns the outcome of a read, moved on to the moment of the query.
func continued(q *store.Query, s algorithm.State, now, updatedAt, blockedUntil int64) store.Outcome {
	at := max(now, updatedAt)
	return store.Outcome{
		Decided: true, Now: now, UpdatedAt: at, BlockedUntil: blockedUntil,
		View: s.Seen(&q.Rules, now, at, q.Room, q.Rest(0)),
	}
}

// Ended returns the row of a Settle of the reservation id.
func Ended(id store.ReservationID, row db.TokenBucketSettleRow) store.Ended {
	r := algorithm.Rules{
		Burst: row.Burst, Capacity: row.Capacity, Leak: row.Leak, Tick: row.TickUs, Period: row.PeriodUs,
	}
	e := store.Ended{
		Reservation: store.Reservation{
			ReservationID: id, Rules: r, Limit: row.LimitUnits, State: store.State(row.State),
			Reserved: row.Reserved, Units: row.UnitsBefore, ExpiresAt: row.ExpiresAtUs,
		},
		Now: row.NowUs, Changed: row.Changes, Freed: row.Freed,
	}
	var now algorithm.State
	switch id.Algorithm.Family() {
	case algorithm.Windows:
		now = &algorithm.Window{Count: row.Level, EndsAt: row.AtUs}
	case algorithm.Counters:
		now = &algorithm.Counter{Current: row.Level, Previous: row.Previous, EndsAt: row.AtUs, Period: row.WindowUs}
	case algorithm.Logs:
		e.Outcome = logGot(db.SlidingWindowLogGetRow{
			NowUs: row.NowUs, Level: row.Level, NewestAtUs: row.AtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		})
		return e
	default:
		now = &algorithm.Bucket{Units: row.Level, LeakedAt: row.AtUs}
	}
	e.Outcome = continued(&store.Query{Rules: r}, now, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
	return e
}

// used adds open reservations to a key's state.
func used(o store.Outcome, reservations int64, reserved float64) store.Usage {
	return store.Usage{Outcome: o, Reservations: int(reservations), Reserved: reserved}
}

// otherPeriod is granted if the clock was in neither of a calendar's windows and the key
// had no row.
const otherPeriod = -2

// inPeriod returns ErrOtherPeriod if the clock was in neither of a calendar's windows.
func inPeriod(granted float64, err error) error {
	if errors.Is(err, pgx.ErrNoRows) || err == nil && granted == otherPeriod {
		return exec.ErrOtherPeriod
	}
	return err
}

// idempotency returns Admission.Idempotency as a parameter.
func idempotency(a *store.Admission) *string {
	if a.Idempotency == "" {
		return nil
	}
	return &a.Idempotency
}

// WaitText returns a LockWait as PostgreSQL's lock_timeout, or "" for none.
func WaitText(wait time.Duration) string {
	switch wait {
	case 0:
		return ""
	case shortWait:
		return shortWaitText
	}
	return milliseconds(wait)
}

// shortWait is the usual LockWait, whose text is made once.
const shortWait = 10 * time.Millisecond

var shortWaitText = milliseconds(shortWait)

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// lockedRows converts the rows of any algorithm's Locked statement.
func lockedRows[T db.GCRALockedRow | db.LeakyBucketLockedRow | db.LeakyBucketQueueLockedRow | db.FixedWindowLockedRow |
	db.SlidingWindowCounterLockedRow | db.SlidingWindowLogLockedRow](rows []T, err error) ([]db.TokenBucketLockedRow, error) {
	locked := make([]db.TokenBucketLockedRow, len(rows))
	for i, r := range rows {
		locked[i] = db.TokenBucketLockedRow(r)
	}
	return locked, err
}
