package statement

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// takeAll is the text of each algorithm's TakeAll.
var takeAll = map[algorithm.Name]string{
	algorithm.LeakyBucket:          db.LeakyBucketTakeAll,
	algorithm.LeakyBucketQueue:     db.LeakyBucketQueueTakeAll,
	algorithm.TokenBucket:          db.TokenBucketTakeAll,
	algorithm.GCRA:                 db.GCRATakeAll,
	algorithm.FixedWindow:          db.FixedWindowTakeAll,
	algorithm.SlidingWindowCounter: db.SlidingWindowCounterTakeAll,
	algorithm.SlidingWindowLog:     db.SlidingWindowLogTakeAll,
}

// TakeAllLater is TakeManyLater, but of a statement that fails unless all rows are granted.
func (t *Table) TakeAllLater(rows []*store.Row, now *int64) func(context.Context, db.DBTX) error {
	b := new(batch)
	b.set(rows, now)
	text := takeAll[rows[0].Query.Algorithm]
	return func(ctx context.Context, tx db.DBTX) error { return t.takeMany(ctx, instead{tx, text}, b) }
}

// instead sends a TakeAll where a TakeMany is sent. The two have the same columns and the
// same parameters: sqlc numbers those of the clock last in a TakeMany, and first here.
type instead struct {
	db.DBTX
	text string
}

const ofClock = 3 // parameters: now_us, commit, lock_timeout

func (i instead) Query(ctx context.Context, _ string, args ...any) (pgx.Rows, error) {
	rows := len(args) - ofClock
	return i.DBTX.Query(ctx, i.text, slices.Concat(args[rows:], args[:rows])...)
}
