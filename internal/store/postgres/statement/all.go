package statement

import (
	"context"

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

// instead sends a TakeAll where a TakeMany is sent. The two have the same parameters and
// columns.
type instead struct {
	db.DBTX
	text string
}

func (i instead) Query(ctx context.Context, _ string, args ...any) (pgx.Rows, error) {
	return i.DBTX.Query(ctx, i.text, args...)
}
