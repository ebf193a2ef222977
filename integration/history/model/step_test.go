package model

import (
	"slices"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestReplayInTransaction: a request of a transaction that waited for the row of an admission
// under its idempotency key answers with that, and may have moved the row's clock.
func TestReplayInTransaction(t *testing.T) {
	t.Parallel()
	const before, later = int64(1_000_000_000), int64(1_000_065_536)
	request := Op{Verb: Allow, Policy: limiter.Policy{Name: "p", Algorithm: limiter.LeakyBucket, Limit: 6, Period: time.Second, Burst: 11}, Units: 1, Idem: 4, InTx: true, Remember: 1_000_000}
	admitted := World{Keys: make([]Key, 1)}
	first := request
	first.Number = 1
	admitted.apply(&first, before, whole)
	again := request
	again.Number, again.Clocks = 2, []int64{before, later}
	answered := admitted.clone()
	answer := answered.apply(&again, before, whole)
	var clocks []int64
	for _, w := range Step(&admitted, &Op{Verb: Tx, Steps: []Op{again}, Commits: true}, &Out{Steps: []Out{answer}}) {
		clocks = append(clocks, w.Keys[0].Clock)
	}
	slices.Sort(clocks)
	if clocks = slices.Compact(clocks); !answer.Result.Replayed || !slices.Equal(clocks, []int64{before, later}) {
		t.Errorf("after %+v the row's clock is one of %v", answer.Result, clocks)
	}
}
