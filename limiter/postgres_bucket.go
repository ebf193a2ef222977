package limiter

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
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
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity,
			Leak: q.Leak, TickUs: q.Tick, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return leaky(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketFill(ctx, tx, db.LeakyBucketFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
			Leak: q.Leak, TickUs: q.Tick, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketRefund(ctx, tx, db.LeakyBucketRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, NowUs: q.now, Commit: q.commit,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.LeakyBucketUndo(ctx, tx, db.LeakyBucketUndoParams{
			Policy: q.policy, Key: q.key, Units: q.units, CountedAtUs: g.At, Leak: q.Leak, TickUs: q.Tick, NowUs: q.now, Commit: q.commit,
		})
		return leaky(db.LeakyBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketGet(ctx, tx, db.LeakyBucketGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return leakyGot(q, row), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.LeakyBucketStatement(ctx, tx, db.LeakyBucketStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return stands(leakyGot(q, db.LeakyBucketGetRow{
			NowUs: row.NowUs, Level: row.Level, LeakedAtUs: row.LeakedAtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Holds, row.Held), err
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

func leakyGot(q *question, row db.LeakyBucketGetRow) outcome {
	return continued(q, &algorithm.Bucket{Units: row.Level, LeakedAt: row.LeakedAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

// stands adds open holds to how a key stands.
func stands(o outcome, holds int64, held float64) standing {
	return standing{outcome: o, holds: int(holds), held: held}
}

func leaky(row db.LeakyBucketTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &algorithm.Bucket{Units: row.Level, LeakedAt: row.LeakedAtUs},
	}
}

var leakyBucketQueueTable = table{
	takeMany: leakyBucketQueueTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.LeakyBucketQueueHeld(ctx, tx, db.LeakyBucketQueueHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueTake(ctx, tx, db.LeakyBucketQueueTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Room: q.room,
			Leak: q.Leak, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return queued(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueFill(ctx, tx, db.LeakyBucketQueueFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
			Leak: q.Leak, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
		})
		return queued(db.LeakyBucketQueueTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.LeakyBucketQueueGet(ctx, tx, db.LeakyBucketQueueGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, db.TokenBucketGetRow(row)), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.LeakyBucketQueueStatement(ctx, tx, db.LeakyBucketQueueStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketStands(q, db.TokenBucketStatementRow(row)), err
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
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.TokenBucketUndo(ctx, tx, bucketUndo(q, g))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.TokenBucketGet(ctx, tx, db.TokenBucketGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, row), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.TokenBucketStatement(ctx, tx, db.TokenBucketStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketStands(q, row), err
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
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.GCRAUndo(ctx, tx, db.GCRAUndoParams(bucketUndo(q, g)))
		return poured(db.TokenBucketTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.GCRAGet(ctx, tx, db.GCRAGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketGot(q, db.TokenBucketGetRow(row)), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.GCRAStatement(ctx, tx, db.GCRAStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return bucketStands(q, db.TokenBucketStatementRow(row)), err
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
		Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity,
		Leak: q.Leak, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
	}
}

func bucketFill(q *question) db.TokenBucketFillParams {
	return db.TokenBucketFillParams{
		Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
		Leak: q.Leak, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
	}
}

func bucketRefund(q *question) db.TokenBucketRefundParams {
	return db.TokenBucketRefundParams{Policy: q.policy, Key: q.key, Units: q.units, NowUs: q.now, Commit: q.commit}
}

func bucketUndo(q *question, g algorithm.Grant) db.TokenBucketUndoParams {
	return db.TokenBucketUndoParams{
		Policy: q.policy, Key: q.key, Units: q.units, CountedAtUs: g.At, Leak: q.Leak, NowUs: q.now, Commit: q.commit,
	}
}

func poured(row db.TokenBucketTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &algorithm.Bucket{Units: row.Level, LeakedAt: row.UpdatedAtUs},
	}
}

func bucketGot(q *question, row db.TokenBucketGetRow) outcome {
	return continued(q, &algorithm.Bucket{Units: row.Level, LeakedAt: row.UpdatedAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

func bucketStands(q *question, row db.TokenBucketStatementRow) standing {
	return stands(bucketGot(q, db.TokenBucketGetRow{
		NowUs: row.NowUs, Level: row.Level, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	}), row.Holds, row.Held)
}
