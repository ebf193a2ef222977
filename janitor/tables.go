package janitor

import (
	"context"

	"github.com/pglimit/pglimit/db"
)

// table is one that is swept. expire deletes up to max rows that had expired
// at cutoff, in one statement, and returns how many those were.
type table struct {
	name   string
	expire func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, error)
}

// tables is the one list of what is swept, in this order.
var tables = []table{
	{"pglimit_leaky_bucket", expire((*db.Queries).LeakyBucketExpire)},
	{"pglimit_leaky_bucket_queue", expire((*db.Queries).LeakyBucketQueueExpire)},
	{"pglimit_token_bucket", expire((*db.Queries).TokenBucketExpire)},
	{"pglimit_gcra", expire((*db.Queries).GCRAExpire)},
	{"pglimit_fixed_window", expire((*db.Queries).FixedWindowExpire)},
	{"pglimit_sliding_window_counter", expire((*db.Queries).SlidingWindowCounterExpire)},
	{"pglimit_sliding_window_log", expire((*db.Queries).SlidingWindowLogExpire)},
	{"pglimit_hold", expire((*db.Queries).HoldExpire)},
}

// expire gives the tables' statements, whose parameters differ in their types'
// names only, one form.
func expire[P ~struct {
	CutoffUs int64
	MaxRows  int64
}](statement func(*db.Queries, context.Context, db.DBTX, P) (int64, error)) func(context.Context, db.DBTX, int64, int64) (int64, error) {
	q := db.New()
	return func(ctx context.Context, conn db.DBTX, cutoff, max int64) (int64, error) {
		return statement(q, ctx, conn, P{CutoffUs: cutoff, MaxRows: max})
	}
}
