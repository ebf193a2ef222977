package limiter

import (
	"context"

	"github.com/pglimit/pglimit/db"
)

// The leaky bucket has ticks, the queue has tickets; token bucket and GCRA have
// the same columns and parameters under two names.

var leakyBucketTable = table{
	takeMany: leakyBucketTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.LeakyBucketHeld(ctx, tx, db.LeakyBucketHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketTake(ctx, tx, db.LeakyBucketTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity,
			Leak: q.leak, TickUs: q.tick, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return leaky(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketFill(ctx, tx, db.LeakyBucketFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
			Leak: q.leak, TickUs: q.tick, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketRefund(ctx, tx, db.LeakyBucketRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.capacity,
			Leak: q.leak, TickUs: q.tick, NowUs: q.now, Commit: q.commit,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketGet(ctx, tx, db.LeakyBucketGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		if err != nil {
			return outcome{}, err
		}
		s := &bucket{units: row.Level, capacity: row.Capacity, leakedAt: row.LeakedAtUs}
		return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs), nil
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.LeakyBucketBlock(ctx, tx, db.LeakyBucketBlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.LeakyBucketUnblock(ctx, tx, db.LeakyBucketUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.LeakyBucketReset(ctx, tx, db.LeakyBucketResetParams(p))
	},
}

func leaky(row db.LeakyBucketTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &bucket{units: row.Level, leakedAt: row.LeakedAtUs},
	}
}

var leakyBucketQueueTable = table{
	takeMany: leakyBucketQueueTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.LeakyBucketQueueHeld(ctx, tx, db.LeakyBucketQueueHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueTake(ctx, tx, db.LeakyBucketQueueTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Room: q.room,
			Leak: q.leak, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return queued(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueFill(ctx, tx, db.LeakyBucketQueueFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
			Leak: q.leak, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
		})
		return queued(db.LeakyBucketQueueTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueGet(ctx, tx, db.LeakyBucketQueueGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, db.TokenBucketGetRow(row), err)
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.LeakyBucketQueueBlock(ctx, tx, db.LeakyBucketQueueBlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.LeakyBucketQueueUnblock(ctx, tx, db.LeakyBucketQueueUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.LeakyBucketQueueReset(ctx, tx, db.LeakyBucketQueueResetParams(p))
	},
}

func queued(row db.LeakyBucketQueueTakeRow) outcome {
	o := poured(db.TokenBucketTakeRow{
		Granted: row.Granted, Level: row.Level, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	})
	o.ticket = row.Ticket
	return o
}

var tokenBucketTable = table{
	takeMany: tokenBucketTakeMany,
	held:     queries.TokenBucketHeld,
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.TokenBucketTake(ctx, tx, bucketTake(q))
		return poured(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.TokenBucketFill(ctx, tx, bucketFill(q))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.TokenBucketRefund(ctx, tx, bucketRefund(q))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.TokenBucketGet(ctx, tx, db.TokenBucketGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, row, err)
	},
	block:   queries.TokenBucketBlock,
	unblock: queries.TokenBucketUnblock,
	reset:   queries.TokenBucketReset,
}

var gcraTable = table{
	takeMany: gcraTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.GCRAHeld(ctx, tx, db.GCRAHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.GCRATake(ctx, tx, db.GCRATakeParams(bucketTake(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.GCRAFill(ctx, tx, db.GCRAFillParams(bucketFill(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.GCRARefund(ctx, tx, db.GCRARefundParams(bucketRefund(q)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.GCRAGet(ctx, tx, db.GCRAGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, db.TokenBucketGetRow(row), err)
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.GCRABlock(ctx, tx, db.GCRABlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.GCRAUnblock(ctx, tx, db.GCRAUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.GCRAReset(ctx, tx, db.GCRAResetParams(p))
	},
}

func bucketTake(q *question) db.TokenBucketTakeParams {
	return db.TokenBucketTakeParams{
		Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity,
		Leak: q.leak, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
	}
}

func bucketFill(q *question) db.TokenBucketFillParams {
	return db.TokenBucketFillParams{
		Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
		Leak: q.leak, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
	}
}

func bucketRefund(q *question) db.TokenBucketRefundParams {
	return db.TokenBucketRefundParams{
		Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.capacity, Leak: q.leak, NowUs: q.now, Commit: q.commit,
	}
}

func poured(row db.TokenBucketTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &bucket{units: row.Level, leakedAt: row.UpdatedAtUs},
	}
}

func bucketGot(q *question, row db.TokenBucketGetRow, err error) (outcome, error) {
	if err != nil {
		return outcome{}, err
	}
	s := &bucket{units: row.Level, capacity: row.Capacity, leakedAt: row.UpdatedAtUs}
	return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs), nil
}
