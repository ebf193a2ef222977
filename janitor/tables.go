package janitor

import (
	"context"

	"github.com/pglimit/pglimit/db"
)

// table is one that is swept. sweep looks at up to max rows that were due at cutoff,
// in one statement: it deletes those that hold nothing, and has the others looked at
// again later. It returns how many those were.
type table struct {
	name  string
	sweep func(ctx context.Context, conn db.DBTX, cutoff, max int64) (deleted, kept int64, err error)
}

// tables is the one list of what is swept, in this order.
var tables = []table{
	{"pglimit_leaky_bucket", limits[db.LeakyBucketSweepParams]((*db.Queries).LeakyBucketSweep)},
	{"pglimit_leaky_bucket_queue", limits[db.LeakyBucketQueueSweepParams]((*db.Queries).LeakyBucketQueueSweep)},
	{"pglimit_token_bucket", limits[db.TokenBucketSweepParams]((*db.Queries).TokenBucketSweep)},
	{"pglimit_gcra", limits[db.GCRASweepParams]((*db.Queries).GCRASweep)},
	{"pglimit_fixed_window", limits[db.FixedWindowSweepParams]((*db.Queries).FixedWindowSweep)},
	{"pglimit_sliding_window_counter", limits[db.SlidingWindowCounterSweepParams]((*db.Queries).SlidingWindowCounterSweep)},
	{"pglimit_sliding_window_log", limits[db.SlidingWindowLogSweepParams]((*db.Queries).SlidingWindowLogSweep)},
	{"pglimit_hold", forgotten},
}

// limits gives the statements of the algorithms' tables, whose parameters and rows
// differ in their types' names only, one form.
func limits[P ~struct {
	CutoffUs int64
	MaxRows  int64
}, R ~struct {
	Deleted int64
	Kept    int64
}](statement func(*db.Queries, context.Context, db.DBTX, P) (R, error)) func(context.Context, db.DBTX, int64, int64) (int64, int64, error) {
	q := db.New()
	return func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
		row, err := statement(q, ctx, conn, P{CutoffUs: cutoff, MaxRows: max})
		swept := struct{ Deleted, Kept int64 }(row)
		return swept.Deleted, swept.Kept, err
	}
}

// forgotten deletes holds that need not be remembered any longer.
func forgotten(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().HoldExpire(ctx, conn, db.HoldExpireParams{CutoffUs: cutoff, MaxRows: max})
	return deleted, 0, err
}
