package limiter

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

var fixedWindowTable = table{
	takeMany: fixedWindowTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.FixedWindowHeld(ctx, tx, db.FixedWindowHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		from, turn, until := q.turns(q.now)
		row, err := queries.FixedWindowTake(ctx, tx, db.FixedWindowTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity,
			PeriodUs: q.Period, Aligned: q.Aligned, FromUs: from, TurnUs: turn, UntilUs: until, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return counted(row), q.wrote(err)
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		from, turn, until := q.turns(q.now)
		row, err := queries.FixedWindowFill(ctx, tx, db.FixedWindowFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
			PeriodUs: q.Period, Aligned: q.Aligned, FromUs: from, TurnUs: turn, UntilUs: until, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
		})
		return counted(db.FixedWindowTakeRow(row)), q.wrote(err)
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.FixedWindowRefund(ctx, tx, db.FixedWindowRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, NowUs: q.now, Commit: q.commit,
		})
		return counted(db.FixedWindowTakeRow(row)), err
	},
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.FixedWindowUndo(ctx, tx, db.FixedWindowUndoParams{
			Policy: q.policy, Key: q.key, Units: q.units, EndsAtUs: g.EndsAt, NowUs: q.now, Commit: q.commit,
		})
		return counted(db.FixedWindowTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.FixedWindowGet(ctx, tx, db.FixedWindowGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return countedGot(q, row), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.FixedWindowStatement(ctx, tx, db.FixedWindowStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return stands(countedGot(q, db.FixedWindowGetRow{
			NowUs: row.NowUs, Level: row.Level, EndsAtUs: row.EndsAtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Holds, row.Held), err
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.FixedWindowBlock(ctx, tx, db.FixedWindowBlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.FixedWindowUnblock(ctx, tx, db.FixedWindowUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.FixedWindowReset(ctx, tx, db.FixedWindowResetParams(p))
	},
}

func countedGot(q *question, row db.FixedWindowGetRow) outcome {
	return continued(q, &algorithm.Window{Count: row.Level, EndsAt: row.EndsAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

func counted(row db.FixedWindowTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &algorithm.Window{Count: row.Level, EndsAt: row.EndsAtUs},
	}
}

var slidingWindowCounterTable = table{
	takeMany: slidingWindowCounterTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.SlidingWindowCounterHeld(ctx, tx, db.SlidingWindowCounterHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterTake(ctx, tx, db.SlidingWindowCounterTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity,
			PeriodUs: q.Period, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return slid(q, row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterFill(ctx, tx, db.SlidingWindowCounterFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
			PeriodUs: q.Period, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterRefund(ctx, tx, db.SlidingWindowCounterRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, NowUs: q.now, Commit: q.commit,
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.SlidingWindowCounterUndo(ctx, tx, db.SlidingWindowCounterUndoParams{
			Policy: q.policy, Key: q.key, Units: q.units, EndsAtUs: g.EndsAt, NowUs: q.now, Commit: q.commit,
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterGet(ctx, tx, db.SlidingWindowCounterGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return slidGot(q, row), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.SlidingWindowCounterStatement(ctx, tx, db.SlidingWindowCounterStatementParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		return stands(slidGot(q, db.SlidingWindowCounterGetRow{
			NowUs: row.NowUs, Current: row.Current, Previous: row.Previous, PeriodUs: row.PeriodUs, EndsAtUs: row.EndsAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Holds, row.Held), err
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.SlidingWindowCounterBlock(ctx, tx, db.SlidingWindowCounterBlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.SlidingWindowCounterUnblock(ctx, tx, db.SlidingWindowCounterUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.SlidingWindowCounterReset(ctx, tx, db.SlidingWindowCounterResetParams(p))
	},
}

func slidGot(q *question, row db.SlidingWindowCounterGetRow) outcome {
	s := &algorithm.Counter{Current: row.Current, Previous: row.Previous, Period: row.PeriodUs, EndsAt: row.EndsAtUs}
	return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

// slid moves the windows on: a denial leaves them as they were.
func slid(q *question, row db.SlidingWindowCounterTakeRow) outcome {
	o := slidGot(q, db.SlidingWindowCounterGetRow{
		NowUs: row.UpdatedAtUs, Current: row.Current, Previous: row.Previous, PeriodUs: row.PeriodUs, EndsAtUs: row.EndsAtUs,
		UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	})
	o.granted = row.Granted
	return o
}

var slidingWindowLogTable = table{
	takeMany: slidingWindowLogTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.SlidingWindowLogHeld(ctx, tx, db.SlidingWindowLogHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogTake(ctx, tx, db.SlidingWindowLogTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Unit: q.unit, Capacity: q.Capacity,
			PeriodUs:   q.Period,
			BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		o := logged(db.SlidingWindowLogFillRow{
			Granted: row.Granted, Level: row.Level, NewestAtUs: row.NewestAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}, row.FreesAtUs)
		return o, err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogFill(ctx, tx, db.SlidingWindowLogFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.Burst,
			PeriodUs: q.Period, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit,
		})
		return logged(row, 0), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogRefund(ctx, tx, db.SlidingWindowLogRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, NowUs: q.now, Commit: q.commit,
		})
		return logged(db.SlidingWindowLogFillRow(row), 0), err
	},
	undo: func(ctx context.Context, tx db.DBTX, q *question, g algorithm.Grant) (outcome, error) {
		row, err := queries.SlidingWindowLogUndo(ctx, tx, db.SlidingWindowLogUndoParams{
			Policy: q.policy, Key: q.key, Units: q.units, CountedAtUs: g.At, NowUs: q.now, Commit: q.commit,
		})
		return logged(db.SlidingWindowLogFillRow(row), 0), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogGet(ctx, tx, db.SlidingWindowLogGetParams{
			Policy: q.policy, Key: q.key, Unit: q.rest(0), Capacity: q.Capacity, PeriodUs: q.Period, NowUs: q.now,
		})
		return logGot(row), err
	},
	stand: func(ctx context.Context, tx db.DBTX, q *question) (standing, error) {
		row, err := queries.SlidingWindowLogStatement(ctx, tx, db.SlidingWindowLogStatementParams{
			Policy: q.policy, Key: q.key, Unit: q.rest(0), Capacity: q.Capacity, PeriodUs: q.Period, NowUs: q.now,
		})
		return stands(logGot(db.SlidingWindowLogGetRow{
			NowUs: row.NowUs, Level: row.Level, NewestAtUs: row.NewestAtUs, FreesAtUs: row.FreesAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Holds, row.Held), err
	},
	block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return queries.SlidingWindowLogBlock(ctx, tx, db.SlidingWindowLogBlockParams(p))
	},
	unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return queries.SlidingWindowLogUnblock(ctx, tx, db.SlidingWindowLogUnblockParams(p))
	},
	reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return queries.SlidingWindowLogReset(ctx, tx, db.SlidingWindowLogResetParams(p))
	},
}

func logGot(row db.SlidingWindowLogGetRow) outcome {
	return outcome{
		now: row.NowUs, updatedAt: max(row.NowUs, row.UpdatedAtUs), blockedUntil: row.BlockedUntilUs,
		view: algorithm.LogView{Units: row.Level, Newest: row.NewestAtUs, Frees: row.FreesAtUs},
	}
}

func logged(row db.SlidingWindowLogFillRow, frees int64) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: algorithm.LogView{Units: row.Level, Newest: row.NewestAtUs, Frees: frees},
	}
}
