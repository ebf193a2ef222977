package statement

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The two statements of each algorithm have the same columns, or these lines do not compile.
var (
	_ = db.LeakyBucketTakeManyRow(db.LeakyBucketTakeAllRow{})
	_ = db.LeakyBucketQueueTakeManyRow(db.LeakyBucketQueueTakeAllRow{})
	_ = db.TokenBucketTakeManyRow(db.TokenBucketTakeAllRow{})
	_ = db.GCRATakeManyRow(db.GCRATakeAllRow{})
	_ = db.FixedWindowTakeManyRow(db.FixedWindowTakeAllRow{})
	_ = db.SlidingWindowCounterTakeManyRow(db.SlidingWindowCounterTakeAllRow{})
	_ = db.SlidingWindowLogTakeManyRow(db.SlidingWindowLogTakeAllRow{})
)

// sent is a DBTX that records one query.
type sent struct {
	db.DBTX
	text string
	args []any
}

var errSent = errors.New("sent")

func (s *sent) Query(_ context.Context, text string, args ...any) (pgx.Rows, error) {
	s.text, s.args = text, args
	return nil, errSent
}

// TestTakeAllIsSent checks that each algorithm sends its TakeAll, with the arguments in the
// order of its own generated method.
func TestTakeAllIsSent(t *testing.T) {
	t.Parallel()
	if len(takeAll) != len(tables) {
		t.Errorf("%d statements for %d algorithms", len(takeAll), len(tables))
	}
	for _, a := range algorithm.Names {
		var got, want sent
		rows := []*store.Row{{Count: 1, Query: &store.Query{Algorithm: a, Policy: "p", Key: "k", Cost: 2, LockWait: shortWait, Rules: algorithm.Rules{
			Capacity: 3, Leak: 4, Tick: 5, Period: 6, Lifetime: 7, BlockFor: 8, Aligned: true,
		}}}}
		if err := Of(a).TakeAllLater(rows, nil)(t.Context(), &got); err != errSent {
			t.Errorf("%s: %v", a, err)
		}
		method := reflect.ValueOf(Queries).MethodByName(map[algorithm.Name]string{
			algorithm.LeakyBucket: "LeakyBucket", algorithm.LeakyBucketQueue: "LeakyBucketQueue", algorithm.TokenBucket: "TokenBucket", algorithm.GCRA: "GCRA",
			algorithm.FixedWindow: "FixedWindow", algorithm.SlidingWindowCounter: "SlidingWindowCounter", algorithm.SlidingWindowLog: "SlidingWindowLog",
		}[a] + "TakeAll")
		params := reflect.New(method.Type().In(2)).Elem()
		b := new(batch)
		b.set(rows, nil)
		for name, v := range map[string]any{
			"Policies": b.policies, "Keys": b.keys, "Costs": b.costs, "Counts": b.counts, "Capacities": b.capacities, "Leaks": b.leaks,
			"TicksUs": b.ticks, "PeriodsUs": b.periods, "AreAligned": b.aligned, "LifetimesUs": b.lifetimes, "BlocksForUs": b.blocks,
			"LockTimeout": b.lockTimeout, "FromsUs": b.froms, "TurnsUs": b.turns, "UntilsUs": b.untils,
		} {
			if f := params.FieldByName(name); f.IsValid() {
				f.Set(reflect.ValueOf(v))
			}
		}
		method.Call([]reflect.Value{reflect.ValueOf(t.Context()), reflect.ValueOf(&want), params})
		if got.text != want.text || !reflect.DeepEqual(got.args, want.args) {
			t.Errorf("%s: sent %v, want %v of\n%s\nwant\n%s", a, got.args, want.args, got.text, want.text)
		}
	}
}
