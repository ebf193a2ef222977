package limiter

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/db"
)

// columns are the rows of a TakeMany, as the arrays that it takes. A statement
// uses those that its algorithm has.
type columns struct {
	policies, keys                   []string
	costs, counts, capacities, leaks []float64
	ticks, periods, holds, blocks    []int64
	aligned                          []bool

	now         *int64
	commit      string
	lockTimeout string
}

func (c *columns) reset() {
	clear(c.policies) // let go of the strings
	clear(c.keys)
	*c = columns{
		policies: c.policies[:0], keys: c.keys[:0],
		costs: c.costs[:0], counts: c.counts[:0], capacities: c.capacities[:0], leaks: c.leaks[:0],
		ticks: c.ticks[:0], periods: c.periods[:0], holds: c.holds[:0], blocks: c.blocks[:0],
		aligned: c.aligned[:0],
	}
}

func (c *columns) add(q *question, count float64) {
	c.policies = append(c.policies, q.policy)
	c.keys = append(c.keys, q.key)
	c.costs = append(c.costs, q.cost)
	c.counts = append(c.counts, count)
	c.capacities = append(c.capacities, q.capacity)
	c.holds = append(c.holds, q.hold)
	c.blocks = append(c.blocks, q.blockFor)
	switch q.algorithm {
	case LeakyBucket:
		c.leaks = append(c.leaks, q.leak)
		c.ticks = append(c.ticks, q.tick)
	case FixedWindow:
		c.periods = append(c.periods, q.period)
		c.aligned = append(c.aligned, q.aligned)
	case SlidingWindowCounter, SlidingWindowLog:
		c.periods = append(c.periods, q.period)
	default:
		c.leaks = append(c.leaks, q.leak)
	}
}

// answers puts the rows of a TakeMany where their questions are: rows come
// back in no order that can be relied on, though mostly in that of the arrays.
type answers struct {
	asked    *columns
	outcomes []outcome
	found    int
}

func newAnswers(c *columns) answers {
	return answers{asked: c, outcomes: make([]outcome, len(c.keys))}
}

func (a *answers) put(policy, key string, o outcome) {
	for i := a.found; i < len(a.outcomes); i++ {
		if a.is(i, policy, key) {
			a.set(i, o)
			return
		}
	}
	for i := range min(a.found, len(a.outcomes)) {
		if a.is(i, policy, key) {
			a.set(i, o)
			return
		}
	}
}

func (a *answers) is(i int, policy, key string) bool {
	return a.asked.keys[i] == key && a.asked.policies[i] == policy
}

func (a *answers) set(i int, o outcome) {
	if a.asked.now != nil {
		o.now = *a.asked.now
	}
	a.outcomes[i] = o
	a.found = i + 1
}

// complete checks that each question got its answer.
func (a *answers) complete(err error) ([]outcome, error) {
	if err != nil {
		return nil, err
	}
	for i := range a.outcomes {
		if a.outcomes[i].view == nil {
			return nil, fmt.Errorf("no row came back for %s and %s", quote(a.asked.policies[i]), quote(a.asked.keys[i]))
		}
	}
	return a.outcomes, nil
}

// heldRows are the rows of any algorithm's Held as those of one.
func heldRows[T db.GCRAHeldRow | db.LeakyBucketHeldRow | db.LeakyBucketQueueHeldRow | db.FixedWindowHeldRow |
	db.SlidingWindowCounterHeldRow | db.SlidingWindowLogHeldRow](rows []T, err error) ([]db.TokenBucketHeldRow, error) {
	held := make([]db.TokenBucketHeldRow, len(rows))
	for i, r := range rows {
		held[i] = db.TokenBucketHeldRow(r)
	}
	return held, err
}

func leakyBucketTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.LeakyBucketTakeMany(ctx, tx, db.LeakyBucketTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		Leaks: c.leaks, TicksUs: c.ticks, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	})
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, leaky(db.LeakyBucketTakeRow{
			Granted: r.Granted, Level: r.Level, LeakedAtUs: r.LeakedAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func leakyBucketQueueTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.LeakyBucketQueueTakeMany(ctx, tx, db.LeakyBucketQueueTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		Leaks: c.leaks, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	})
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, queued(db.LeakyBucketQueueTakeRow{
			Granted: r.Granted, Level: r.Level, Ticket: r.Ticket, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func tokenBucketTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.TokenBucketTakeMany(ctx, tx, bucketTakeMany(c))
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func gcraTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.GCRATakeMany(ctx, tx, db.GCRATakeManyParams(bucketTakeMany(c)))
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func bucketTakeMany(c *columns) db.TokenBucketTakeManyParams {
	return db.TokenBucketTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		Leaks: c.leaks, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	}
}

func fixedWindowTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.FixedWindowTakeMany(ctx, tx, db.FixedWindowTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		PeriodsUs: c.periods, AreAligned: c.aligned, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	})
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, counted(db.FixedWindowTakeRow{
			Granted: r.Granted, Level: r.Level, EndsAtUs: r.EndsAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func slidingWindowCounterTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.SlidingWindowCounterTakeMany(ctx, tx, db.SlidingWindowCounterTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		PeriodsUs: c.periods, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	})
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, slid(db.SlidingWindowCounterTakeRow{
			Granted: r.Granted, Current: r.Current, Previous: r.Previous, EndsAtUs: r.EndsAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return a.complete(err)
}

func slidingWindowLogTakeMany(ctx context.Context, tx db.DBTX, c *columns) ([]outcome, error) {
	rows, err := queries.SlidingWindowLogTakeMany(ctx, tx, db.SlidingWindowLogTakeManyParams{
		Policies: c.policies, Keys: c.keys, Costs: c.costs, Counts: c.counts, Capacities: c.capacities,
		PeriodsUs: c.periods, HoldsUs: c.holds, BlocksForUs: c.blocks,
		NowUs: c.now, Commit: c.commit, LockTimeout: c.lockTimeout,
	})
	a := newAnswers(c)
	for _, r := range rows {
		a.put(r.Policy, r.Key, logged(db.SlidingWindowLogFillRow{
			Granted: r.Granted, Level: r.Level, NewestAtUs: r.NewestAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}, r.FreesAtUs))
	}
	return a.complete(err)
}
