// Package tables gives the statements of a sweep, one for each algorithm, one signature.
package tables

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/db"
)

// Table is a table to sweep.
type Table struct {
	Name string
	// Sweep checks up to max rows that were due at cutoff (microseconds since
	// 1970-01-01 UTC), in one statement. It deletes the empty rows and makes the others
	// due later. It returns the numbers of both.
	Sweep func(ctx context.Context, conn db.DBTX, cutoff, max int64) (deleted, kept int64, err error)
}

// All are the tables to sweep, in this order.
var All = []Table{
	{"pglimit_leaky_bucket", limits[db.LeakyBucketSweepParams]((*db.Queries).LeakyBucketSweep)},
	{"pglimit_leaky_bucket_queue", limits[db.LeakyBucketQueueSweepParams]((*db.Queries).LeakyBucketQueueSweep)},
	{"pglimit_token_bucket", limits[db.TokenBucketSweepParams]((*db.Queries).TokenBucketSweep)},
	{"pglimit_gcra", limits[db.GCRASweepParams]((*db.Queries).GCRASweep)},
	{"pglimit_fixed_window", limits[db.FixedWindowSweepParams]((*db.Queries).FixedWindowSweep)},
	{"pglimit_sliding_window_counter", limits[db.SlidingWindowCounterSweepParams]((*db.Queries).SlidingWindowCounterSweep)},
	{"pglimit_sliding_window_log", limits[db.SlidingWindowLogSweepParams]((*db.Queries).SlidingWindowLogSweep)},
	{"pglimit_reservation", forgotten},
}

// inFlight is longer than a statement waits for its rows, outside of callers' transactions.
// It has read the clock before. If others use and empty one of its rows meanwhile, the row
// has to stay: without it the statement would decide as of a time before theirs. So the
// tables of limits are swept as of that long ago.
const inFlight = time.Minute

// limits gives the statements of the algorithms' tables one signature: their parameters
// and rows differ only in the names of the types.
func limits[P ~struct {
	CutoffUs int64
	MaxRows  int64
}, R ~struct {
	Deleted int64
	Kept    int64
}](statement func(*db.Queries, context.Context, db.DBTX, P) (R, error)) func(context.Context, db.DBTX, int64, int64) (int64, int64, error) {
	q := db.New()
	return func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
		row, err := statement(q, ctx, conn, P{CutoffUs: cutoff - inFlight.Microseconds(), MaxRows: max})
		swept := struct{ Deleted, Kept int64 }(row)
		return swept.Deleted, swept.Kept, err
	}
}

// forgotten deletes reservations whose retention is over.
func forgotten(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().ReservationExpire(ctx, conn, db.ReservationExpireParams{CutoffUs: cutoff, MaxRows: max})
	return deleted, 0, err
}

const (
	// slot is the longest time that a row of pglimit_denial is for.
	slot = 10 * time.Minute
	// minutes is the time for which the rows of pglimit_denial are kept by the minute.
	minutes = time.Hour
)

// mostDenials is the largest number of counts of keys in pglimit_denial that a sweep leaves.
const mostDenials = 100_000

// Denials are the sweeps of the counts of denials: of those whose slot ended longer than
// keep ago, of those by the minute that are merged, and of the oldest of keys if there are
// too many. They are for one sweep.
func Denials(keep time.Duration) []Table {
	const name = "pglimit_denial"
	old := (keep + slot).Microseconds()
	over := int64(-1) // counts too many; negative: not known yet
	return []Table{
		{name, func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
			deleted, err := db.New().DenialsForget(ctx, conn, db.DenialsForgetParams{CutoffUs: cutoff - old, MaxRows: max})
			return deleted, 0, err
		}},
		{name, func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
			whole := (cutoff - minutes.Microseconds()) / slot.Microseconds() * slot.Microseconds()
			n, err := db.New().DenialsMerge(ctx, conn, db.DenialsMergeParams{BeforeUs: whole, MaxRows: max})
			return n.Deleted, n.Merged - n.Deleted, err
		}},
		{name, func(ctx context.Context, conn db.DBTX, _, most int64) (deleted, _ int64, err error) {
			if over < 0 {
				n, err := db.New().DenialsCount(ctx, conn)
				if err != nil {
					return 0, 0, err
				}
				over = max(0, n-mostDenials)
			}
			if over > 0 {
				deleted, err = db.New().DenialsTrim(ctx, conn, min(most, over))
				over -= deleted
			}
			return deleted, 0, err
		}},
	}
}

// Settle maps each algorithm to the statement that ends one of its reservations.
var Settle = map[string]func(context.Context, db.DBTX, db.TokenBucketSettleParams) error{
	"leaky_bucket":           ender[db.LeakyBucketSettleParams]((*db.Queries).LeakyBucketSettle),
	"token_bucket":           ender[db.TokenBucketSettleParams]((*db.Queries).TokenBucketSettle),
	"gcra":                   ender[db.GCRASettleParams]((*db.Queries).GCRASettle),
	"fixed_window":           ender[db.FixedWindowSettleParams]((*db.Queries).FixedWindowSettle),
	"sliding_window_counter": ender[db.SlidingWindowCounterSettleParams]((*db.Queries).SlidingWindowCounterSettle),
	"sliding_window_log":     ender[db.SlidingWindowLogSettleParams]((*db.Queries).SlidingWindowLogSettle),
}

// ender gives the statements that end reservations one signature: their parameters differ
// only in the names of the types.
func ender[P ~struct {
	Policy      string
	Key         string
	NowUs       *int64
	Units       float64
	State       string
	ID          string
	LockTimeout string
	Commit      string
}, R any](statement func(*db.Queries, context.Context, db.DBTX, P) (R, error)) func(context.Context, db.DBTX, db.TokenBucketSettleParams) error {
	q := db.New()
	return func(ctx context.Context, conn db.DBTX, p db.TokenBucketSettleParams) error {
		_, err := statement(q, ctx, conn, P(p))
		return err
	}
}
