package statement

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The two statements of each algorithm have the same parameters, in one order, and the
// same columns, or these lines do not compile.
var (
	_ = db.LeakyBucketTakeManyParams(db.LeakyBucketTakeAllParams{})
	_ = db.LeakyBucketQueueTakeManyParams(db.LeakyBucketQueueTakeAllParams{})
	_ = db.TokenBucketTakeManyParams(db.TokenBucketTakeAllParams{})
	_ = db.GCRATakeManyParams(db.GCRATakeAllParams{})
	_ = db.FixedWindowTakeManyParams(db.FixedWindowTakeAllParams{})
	_ = db.SlidingWindowCounterTakeManyParams(db.SlidingWindowCounterTakeAllParams{})
	_ = db.SlidingWindowLogTakeManyParams(db.SlidingWindowLogTakeAllParams{})

	_ = db.LeakyBucketTakeManyRow(db.LeakyBucketTakeAllRow{})
	_ = db.LeakyBucketQueueTakeManyRow(db.LeakyBucketQueueTakeAllRow{})
	_ = db.TokenBucketTakeManyRow(db.TokenBucketTakeAllRow{})
	_ = db.GCRATakeManyRow(db.GCRATakeAllRow{})
	_ = db.FixedWindowTakeManyRow(db.FixedWindowTakeAllRow{})
	_ = db.SlidingWindowCounterTakeManyRow(db.SlidingWindowCounterTakeAllRow{})
	_ = db.SlidingWindowLogTakeManyRow(db.SlidingWindowLogTakeAllRow{})
)

// sentText is a DBTX that records the text of one query.
type sentText struct {
	db.DBTX
	text string
}

var errSent = errors.New("sentText")

func (s *sentText) Query(_ context.Context, text string, _ ...any) (pgx.Rows, error) {
	s.text = text
	return nil, errSent
}

// TestTakeAllIsSent: each algorithm sends its own TakeAll.
func TestTakeAllIsSent(t *testing.T) {
	t.Parallel()
	for _, a := range algorithm.Names {
		var take, all sentText
		rows := []*store.Row{{Count: 1, Query: &store.Query{Algorithm: a}}}
		if err := Of(a).TakeManyLater(rows, nil)(t.Context(), &take); err != errSent {
			t.Errorf("%s: %v", a, err)
		}
		if err := Of(a).TakeAllLater(rows, nil)(t.Context(), &all); err != errSent {
			t.Errorf("%s: %v", a, err)
		}
		name := func(text string) string { return strings.Fields(text)[2] }
		if got, want := name(all.text), strings.TrimSuffix(name(take.text), "Many")+"All"; got != want {
			t.Errorf("%s sends %s, want %s", a, got, want)
		}
	}
}
