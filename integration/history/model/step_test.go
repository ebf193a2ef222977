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

// TestDenialForgets: a denied request frees its idempotency key if what that stands for need
// not be remembered, so that a request with an earlier reading of the clock finds nothing.
func TestDenialForgets(t *testing.T) {
	t.Parallel()
	const before, later = int64(1_000_000_000), int64(1_003_000_000)
	request := Op{Verb: Allow, Policy: limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 6, Period: time.Second}, Units: 1, Idem: 4, Remember: 2_000_000}
	w := World{Keys: make([]Key, 1)}
	at := func(now int64, op Op) Out { return w.apply(&op, now, whole) }
	charge := request
	charge.Verb, charge.Idem, charge.Units = Charge, 0, 6
	first := at(before, request)
	again := at(before, request)
	at(later, charge)
	full := at(later, request)
	early := at(before, request)
	if !first.Result.Allowed || !again.Result.Replayed || full.Result.Allowed || early.Result.Allowed {
		t.Errorf("admitted: %+v\nrepeated: %+v\nrepeated, forgotten, when the limit is reached: %+v\nwith the first reading of the clock: %+v", first.Result, again.Result, full.Result, early.Result)
	}
}
