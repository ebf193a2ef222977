package statement

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The leaky bucket has ticks and the queue has tickets. Token bucket and GCRA have the
// same columns and parameters under two names.

var leakyBucket = Table{
	takeMany: leakyBucketTakeMany,
	binary:   &leakyBucketBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.LeakyBucketLocked(ctx, tx, db.LeakyBucketLockedParams(p)))
	},
	Take: leakyBucketBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketTake(ctx, tx, db.LeakyBucketTakeParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity,
			Leak: q.Leak, TickUs: q.Tick, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return leaky(row), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketCharge(ctx, tx, db.LeakyBucketChargeParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
			Leak: q.Leak, TickUs: q.Tick, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketRefund(ctx, tx, db.LeakyBucketRefundParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.LeakyBucketUndo(ctx, tx, db.LeakyBucketUndoParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, CountedAtUs: g.At, Leak: q.Leak, TickUs: q.Tick, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketGet(ctx, tx, db.LeakyBucketGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return leakyGot(q, row), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.LeakyBucketUsage(ctx, tx, db.LeakyBucketUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return used(leakyGot(q, db.LeakyBucketGetRow{
			NowUs: row.NowUs, Level: row.Level, LeakedAtUs: row.LeakedAtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Reservations, row.Reserved), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.LeakyBucketBlock(ctx, tx, db.LeakyBucketBlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.LeakyBucketUnblock(ctx, tx, db.LeakyBucketUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.LeakyBucketReset(ctx, tx, db.LeakyBucketResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.LeakyBucketReserve(ctx, tx, db.LeakyBucketReserveParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Burst: q.Burst,
			Leak: q.Leak, TickUs: q.Tick, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	Settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
		row, err := Queries.LeakyBucketSettle(ctx, tx, db.LeakyBucketSettleParams(p))
		return db.TokenBucketSettleRow(row), err
	},
}

func leakyGot(q *store.Query, row db.LeakyBucketGetRow) store.Outcome {
	return continued(q, &algorithm.Bucket{Units: row.Level, LeakedAt: row.LeakedAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

func leaky(row db.LeakyBucketTakeRow) store.Outcome {
	return taken(row.Granted, row.UpdatedAtUs, row.BlockedUntilUs, &algorithm.Bucket{Units: row.Level, LeakedAt: row.LeakedAtUs})
}

var leakyBucketQueue = Table{
	takeMany: leakyBucketQueueTakeMany,
	binary:   &leakyBucketQueueBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.LeakyBucketQueueLocked(ctx, tx, db.LeakyBucketQueueLockedParams(p)))
	},
	Take: leakyBucketQueueBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketQueueTake(ctx, tx, db.LeakyBucketQueueTakeParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Room: q.Room,
			Leak: q.Leak, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return queued(row), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketQueueCharge(ctx, tx, db.LeakyBucketQueueChargeParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
			Leak: q.Leak, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return queued(db.LeakyBucketQueueTakeRow(row)), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.LeakyBucketQueueGet(ctx, tx, db.LeakyBucketQueueGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketGot(q, db.TokenBucketGetRow(row)), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.LeakyBucketQueueUsage(ctx, tx, db.LeakyBucketQueueUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketStands(q, db.TokenBucketUsageRow(row)), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.LeakyBucketQueueBlock(ctx, tx, db.LeakyBucketQueueBlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.LeakyBucketQueueUnblock(ctx, tx, db.LeakyBucketQueueUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.LeakyBucketQueueReset(ctx, tx, db.LeakyBucketQueueResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.LeakyBucketQueueReserve(ctx, tx, db.LeakyBucketQueueReserveParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Burst: q.Burst, Room: q.Room,
			Leak: q.Leak, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
		})
		return queued(db.LeakyBucketQueueTakeRow(row)), err
	},
}

func queued(row db.LeakyBucketQueueTakeRow) store.Outcome {
	o := poured(db.TokenBucketTakeRow{
		Granted: row.Granted, Level: row.Level, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	})
	o.Ticket = row.Ticket
	return o
}

var tokenBucket = Table{
	takeMany: tokenBucketTakeMany,
	binary:   &tokenBucketBinary,
	Locked:   Queries.TokenBucketLocked,
	Take: tokenBucketBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.TokenBucketTake(ctx, tx, bucketTake(q))
		return poured(row), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.TokenBucketCharge(ctx, tx, bucketCharge(q))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.TokenBucketRefund(ctx, tx, bucketRefund(q))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.TokenBucketUndo(ctx, tx, bucketUndo(q, g))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.TokenBucketGet(ctx, tx, db.TokenBucketGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketGot(q, row), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.TokenBucketUsage(ctx, tx, db.TokenBucketUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketStands(q, row), err
	},
	Block:   Queries.TokenBucketBlock,
	Unblock: Queries.TokenBucketUnblock,
	Reset:   Queries.TokenBucketReset,
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.TokenBucketReserve(ctx, tx, bucketReserve(q, a))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Settle: Queries.TokenBucketSettle,
}

var gcra = Table{
	takeMany: gcraTakeMany,
	binary:   &gcraBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.GCRALocked(ctx, tx, db.GCRALockedParams(p)))
	},
	Take: gcraBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.GCRATake(ctx, tx, db.GCRATakeParams(bucketTake(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.GCRACharge(ctx, tx, db.GCRAChargeParams(bucketCharge(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.GCRARefund(ctx, tx, db.GCRARefundParams(bucketRefund(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.GCRAUndo(ctx, tx, db.GCRAUndoParams(bucketUndo(q, g)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.GCRAGet(ctx, tx, db.GCRAGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketGot(q, db.TokenBucketGetRow(row)), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.GCRAUsage(ctx, tx, db.GCRAUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return bucketStands(q, db.TokenBucketUsageRow(row)), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.GCRABlock(ctx, tx, db.GCRABlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.GCRAUnblock(ctx, tx, db.GCRAUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.GCRAReset(ctx, tx, db.GCRAResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.GCRAReserve(ctx, tx, db.GCRAReserveParams(bucketReserve(q, a)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	Settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
		row, err := Queries.GCRASettle(ctx, tx, db.GCRASettleParams(p))
		return db.TokenBucketSettleRow(row), err
	},
}

func bucketTake(q *store.Query) db.TokenBucketTakeParams {
	return db.TokenBucketTakeParams{
		Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity,
		Leak: q.Leak, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
	}
}

func bucketCharge(q *store.Query) db.TokenBucketChargeParams {
	return db.TokenBucketChargeParams{
		Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
		Leak: q.Leak, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
	}
}

func bucketRefund(q *store.Query) db.TokenBucketRefundParams {
	return db.TokenBucketRefundParams{Policy: q.Policy, Key: q.Key, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait)}
}

func bucketUndo(q *store.Query, g algorithm.Grant) db.TokenBucketUndoParams {
	return db.TokenBucketUndoParams{
		Policy: q.Policy, Key: q.Key, Units: q.Units, CountedAtUs: g.At, Leak: q.Leak, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
	}
}

func poured(row db.TokenBucketTakeRow) store.Outcome {
	return taken(row.Granted, row.UpdatedAtUs, row.BlockedUntilUs, &algorithm.Bucket{Units: row.Level, LeakedAt: row.UpdatedAtUs})
}

func bucketGot(q *store.Query, row db.TokenBucketGetRow) store.Outcome {
	return continued(q, &algorithm.Bucket{Units: row.Level, LeakedAt: row.UpdatedAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

func bucketStands(q *store.Query, row db.TokenBucketUsageRow) store.Usage {
	return used(bucketGot(q, db.TokenBucketGetRow{
		NowUs: row.NowUs, Level: row.Level, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	}), row.Reservations, row.Reserved)
}

func bucketReserve(q *store.Query, a *store.Admission) db.TokenBucketReserveParams {
	return db.TokenBucketReserveParams{
		Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Burst: q.Burst,
		Leak: q.Leak, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
	}
}

func leakyBucketTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.LeakyBucketTakeMany(ctx, tx, db.LeakyBucketTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		Leaks: b.leaks, TicksUs: b.ticks, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	})
	for _, r := range rows {
		b.put(r.Policy, r.Key, leaky(db.LeakyBucketTakeRow{
			Granted: r.Granted, Level: r.Level, LeakedAtUs: r.LeakedAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return b.done(err)
}

func leakyBucketQueueTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.LeakyBucketQueueTakeMany(ctx, tx, db.LeakyBucketQueueTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		Leaks: b.leaks, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	})
	for _, r := range rows {
		b.put(r.Policy, r.Key, queued(db.LeakyBucketQueueTakeRow{
			Granted: r.Granted, Level: r.Level, Ticket: r.Ticket, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return b.done(err)
}

func tokenBucketTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.TokenBucketTakeMany(ctx, tx, bucketTakeMany(b))
	for _, r := range rows {
		b.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return b.done(err)
}

func gcraTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.GCRATakeMany(ctx, tx, db.GCRATakeManyParams(bucketTakeMany(b)))
	for _, r := range rows {
		b.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return b.done(err)
}

func bucketTakeMany(b *batch) db.TokenBucketTakeManyParams {
	return db.TokenBucketTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		Leaks: b.leaks, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	}
}
