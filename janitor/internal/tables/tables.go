// Package tables gives the statements of a sweep, one for each algorithm, one signature.
package tables

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/shards"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Table is a table to sweep.
type Table struct {
	Name string
	// Sweep checks up to max rows of a shard that were due at cutoff (microseconds since
	// 1970-01-01 UTC), in one statement. It deletes the empty rows and makes the others
	// due later. It returns the numbers of both.
	Sweep func(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (deleted, kept int64, err error)
	// Several reports whether Sweep sends several statements, which need a transaction.
	Several bool
}

// Shard is the rows of one shard, or all rows if the tables are not distributed.
type Shard struct {
	Distributed bool
	Key         string // one that the shard would have
}

// Of returns tx for a statement about the shard's rows.
func (s Shard) Of(tx db.DBTX) db.DBTX {
	if !s.Distributed {
		return tx
	}
	return exec.OnShard(tx, s.Key)
}

// Shards returns the shards of m, which is nil if the tables are not distributed.
func Shards(m *shards.Map) []Shard {
	if m == nil {
		return []Shard{{}}
	}
	all := make([]Shard, m.Len())
	for i := range all {
		all[i] = Shard{true, m.Key(i)}
	}
	return all
}

func init() { exec.DistributeLater(others) }

// others distributes the statements that are not limits' or ender's.
func others() {
	q := db.New()
	exec.Distribute(q.ReservationExpire)
	exec.Distribute(q.EventsForget)
	exec.Distribute(q.UsageForget)
	exec.Distribute(q.LedgerForget)
	exec.Distribute(q.DenialsForget)
	exec.Distribute(q.DenialsMerge)
	exec.DistributeMany(q.DenialsTrim)
	exec.Distribute(exec.WithoutRow(q.DenialsAdd))
	exec.DistributeMany(q.KeysUncounted)
	exec.Distribute(q.KeysRecount)
	exec.Distribute(func(ctx context.Context, tx db.DBTX, _ struct{}) (int64, error) { return q.DenialsCount(ctx, tx) })
}

// All are the tables to sweep, in this order.
var All = []Table{
	{Name: "pglimit_leaky_bucket", Sweep: limits[db.LeakyBucketSweepParams]((*db.Queries).LeakyBucketSweep)},
	{Name: "pglimit_leaky_bucket_queue", Sweep: limits[db.LeakyBucketQueueSweepParams]((*db.Queries).LeakyBucketQueueSweep)},
	{Name: "pglimit_token_bucket", Sweep: limits[db.TokenBucketSweepParams]((*db.Queries).TokenBucketSweep)},
	{Name: "pglimit_fixed_window", Sweep: limits[db.FixedWindowSweepParams]((*db.Queries).FixedWindowSweep)},
	{Name: "pglimit_sliding_window_counter", Sweep: limits[db.SlidingWindowCounterSweepParams]((*db.Queries).SlidingWindowCounterSweep)},
	{Name: "pglimit_sliding_window_log", Sweep: limits[db.SlidingWindowLogSweepParams]((*db.Queries).SlidingWindowLogSweep)},
	{Name: "pglimit_balance", Sweep: limits[db.BalanceSweepParams]((*db.Queries).BalanceSweep)},
	{Name: "pglimit_attempt", Sweep: limits[db.AttemptSweepParams]((*db.Queries).AttemptSweep)},
	{Name: "pglimit_slot", Sweep: limits[db.SlotSweepParams]((*db.Queries).SlotSweep)},
	{Name: "pglimit_reservation", Sweep: forgotten},
	{Name: "pglimit_event", Sweep: oldEvents},
	{Name: "pglimit_usage", Sweep: oldUsage},
	{Name: "pglimit_ledger", Sweep: oldEntries},
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
}](statement func(*db.Queries, context.Context, db.DBTX, P) (R, error)) func(context.Context, db.DBTX, Shard, int64, int64) (int64, int64, error) {
	q := db.New()
	exec.Distribute(func(ctx context.Context, tx db.DBTX, p P) (R, error) { return statement(q, ctx, tx, p) })
	return func(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
		row, err := statement(q, ctx, s.Of(tx), P{CutoffUs: cutoff - inFlight.Microseconds(), MaxRows: max})
		swept := struct{ Deleted, Kept int64 }(row)
		return swept.Deleted, swept.Kept, err
	}
}

// forgotten deletes reservations whose retention is over.
func forgotten(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().ReservationExpire(ctx, s.Of(tx), db.ReservationExpireParams{CutoffUs: cutoff, MaxRows: max})
	return deleted, 0, err
}

// keepEvents is the time for which events are kept after their window.
const keepEvents = 30 * 24 * time.Hour

// oldEvents deletes events whose window ended that long ago.
func oldEvents(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().EventsForget(ctx, s.Of(tx), db.EventsForgetParams{CutoffUs: cutoff - keepEvents.Microseconds(), MaxRows: max})
	return deleted, 0, err
}

// oldUsage deletes sums that their policy no longer keeps.
func oldUsage(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().UsageForget(ctx, s.Of(tx), db.UsageForgetParams{CutoffUs: cutoff, MaxRows: max})
	return deleted, 0, err
}

// keepEntries is the time for which the entries of ledgers are kept.
const keepEntries = 3650 * 24 * time.Hour

// oldEntries deletes entries of that long ago.
func oldEntries(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
	deleted, err := db.New().LedgerForget(ctx, s.Of(tx), db.LedgerForgetParams{CutoffUs: cutoff - keepEntries.Microseconds(), MaxRows: max})
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
// too many. They are for one sweep of one shard, among is the number of
// shards.
func Denials(keep time.Duration, among int) []Table {
	const name = "pglimit_denial"
	old := (keep + slot).Microseconds()
	over := int64(-1) // counts too many; negative: not known yet
	return []Table{
		{Name: name, Sweep: func(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
			deleted, err := db.New().DenialsForget(ctx, s.Of(tx), db.DenialsForgetParams{CutoffUs: cutoff - old, MaxRows: max})
			return deleted, 0, err
		}},
		{Name: name, Sweep: func(ctx context.Context, tx db.DBTX, s Shard, cutoff, max int64) (int64, int64, error) {
			whole := (cutoff - minutes.Microseconds()) / slot.Microseconds() * slot.Microseconds()
			n, err := db.New().DenialsMerge(ctx, s.Of(tx), db.DenialsMergeParams{BeforeUs: whole, MaxRows: max})
			return n.Deleted, n.Merged - n.Deleted, err
		}},
		{Name: name, Several: true, Sweep: func(ctx context.Context, tx db.DBTX, s Shard, _, most int64) (deleted, _ int64, err error) {
			if over < 0 {
				n, err := db.New().DenialsCount(ctx, s.Of(tx))
				if err != nil {
					return 0, 0, err
				}
				over = max(0, n-mostDenials/int64(among))
			}
			if over > 0 {
				deleted, err = trim(ctx, tx, s, min(most, over))
				over -= deleted
			}
			return deleted, 0, err
		}},
	}
}

// trim deletes the oldest counts of keys, most in one statement, and adds them to the sums under the
// key "". It returns their number.
func trim(ctx context.Context, tx db.DBTX, s Shard, most int64) (deleted int64, err error) {
	sums, err := db.New().DenialsTrim(ctx, s.Of(tx), most)
	if err != nil {
		return 0, err
	}
	slots := map[int64]*db.DenialsAddParams{}
	for _, d := range sums {
		deleted += d.Deleted
		p := slots[d.SlotUs]
		if p == nil {
			p = &db.DenialsAddParams{NowUs: &d.SlotUs}
			slots[d.SlotUs] = p
		}
		p.Policies, p.Keys, p.Algorithms = append(p.Policies, d.Policy), append(p.Keys, ""), append(p.Algorithms, d.Algorithm)
		p.Denials, p.Shadowed, p.Blocked = append(p.Denials, d.Denials), append(p.Shadowed, d.Shadowed), append(p.Blocked, d.Blocked)
		p.AboveBurst, p.Overloaded, p.Units = append(p.AboveBurst, d.AboveBurst), append(p.Overloaded, d.Overloaded), append(p.Units, d.Units)
		p.LastDeniedAtUs, p.RetryAtUs = append(p.LastDeniedAtUs, d.LastDeniedAtUs), append(p.RetryAtUs, 0)
	}
	for _, at := range slices.Sorted(maps.Keys(slots)) {
		if err := db.New().DenialsAdd(ctx, Shard{s.Distributed, ""}.Of(tx), *slots[at]); err != nil {
			return 0, err
		}
	}
	return deleted, nil
}

// Settle maps each algorithm to the statement that ends one of its reservations.
var Settle = map[string]func(context.Context, db.DBTX, db.TokenBucketSettleParams) error{
	"leaky_bucket":           ender[db.LeakyBucketSettleParams]((*db.Queries).LeakyBucketSettle),
	"token_bucket":           ender[db.TokenBucketSettleParams]((*db.Queries).TokenBucketSettle),
	"fixed_window":           ender[db.FixedWindowSettleParams]((*db.Queries).FixedWindowSettle),
	"sliding_window_counter": ender[db.SlidingWindowCounterSettleParams]((*db.Queries).SlidingWindowCounterSettle),
	"sliding_window_log":     ender[db.SlidingWindowLogSettleParams]((*db.Queries).SlidingWindowLogSettle),
	"balance":                ender[db.BalanceSettleParams]((*db.Queries).BalanceSettle),
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
	exec.Distribute(func(ctx context.Context, tx db.DBTX, p P) (R, error) { return statement(q, ctx, tx, p) })
	return func(ctx context.Context, conn db.DBTX, p db.TokenBucketSettleParams) error {
		_, err := statement(q, ctx, conn, P(p))
		return err
	}
}
