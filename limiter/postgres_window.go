package limiter

import (
	"context"

	"github.com/pglimit/pglimit/db"
)

var fixedWindowTable = table{
	takeMany: fixedWindowTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.FixedWindowHeld(ctx, tx, db.FixedWindowHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		from, turn, until := q.turns(q.now)
		row, err := queries.FixedWindowTake(ctx, tx, db.FixedWindowTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity,
			PeriodUs: q.period, Aligned: q.aligned, FromUs: from, TurnUs: turn, UntilUs: until, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return counted(row), q.wrote(err)
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		from, turn, until := q.turns(q.now)
		row, err := queries.FixedWindowFill(ctx, tx, db.FixedWindowFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
			PeriodUs: q.period, Aligned: q.aligned, FromUs: from, TurnUs: turn, UntilUs: until, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
		})
		return counted(db.FixedWindowTakeRow(row)), q.wrote(err)
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.FixedWindowRefund(ctx, tx, db.FixedWindowRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.capacity, NowUs: q.now, Commit: q.commit,
		})
		return counted(db.FixedWindowTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.FixedWindowGet(ctx, tx, db.FixedWindowGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		if err != nil {
			return outcome{}, err
		}
		s := &fixedWindow{count: row.Level, capacity: row.Capacity, endsAt: row.EndsAtUs}
		return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs), nil
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

func counted(row db.FixedWindowTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &fixedWindow{count: row.Level, endsAt: row.EndsAtUs},
	}
}

var slidingWindowCounterTable = table{
	takeMany: slidingWindowCounterTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.SlidingWindowCounterHeld(ctx, tx, db.SlidingWindowCounterHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterTake(ctx, tx, db.SlidingWindowCounterTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity,
			PeriodUs: q.period, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		return slid(row), err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterFill(ctx, tx, db.SlidingWindowCounterFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
			PeriodUs: q.period, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
		})
		return slid(db.SlidingWindowCounterTakeRow(row)), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterRefund(ctx, tx, db.SlidingWindowCounterRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.capacity, PeriodUs: q.period, NowUs: q.now, Commit: q.commit,
		})
		return slid(db.SlidingWindowCounterTakeRow(row)), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowCounterGet(ctx, tx, db.SlidingWindowCounterGetParams{Policy: q.policy, Key: q.key, NowUs: q.now})
		if err != nil {
			return outcome{}, err
		}
		s := &slidingCounter{current: row.Current, previous: row.Previous, capacity: row.Capacity, endsAt: row.EndsAtUs}
		return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs), nil
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

func slid(row db.SlidingWindowCounterTakeRow) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: &slidingCounter{current: row.Current, previous: row.Previous, endsAt: row.EndsAtUs},
	}
}

var slidingWindowLogTable = table{
	takeMany: slidingWindowLogTakeMany,
	held: func(ctx context.Context, tx db.DBTX, p db.TokenBucketHeldParams) ([]db.TokenBucketHeldRow, error) {
		return heldRows(queries.SlidingWindowLogHeld(ctx, tx, db.SlidingWindowLogHeldParams(p)))
	},
	take: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogTake(ctx, tx, db.SlidingWindowLogTakeParams{
			Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Unit: q.unit, Capacity: q.capacity,
			PeriodUs:   q.period,
			BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		})
		o := logged(db.SlidingWindowLogFillRow{
			Granted: row.Granted, Level: row.Level, NewestAtUs: row.NewestAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}, row.FreesAtUs)
		return o, err
	},
	fill: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogFill(ctx, tx, db.SlidingWindowLogFillParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.burst,
			PeriodUs: q.period, HoldUs: q.hold, NowUs: q.now, Commit: q.commit,
		})
		return logged(row, 0), err
	},
	refund: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogRefund(ctx, tx, db.SlidingWindowLogRefundParams{
			Policy: q.policy, Key: q.key, Units: q.units, Capacity: q.capacity, PeriodUs: q.period, NowUs: q.now, Commit: q.commit,
		})
		return logged(db.SlidingWindowLogFillRow(row), 0), err
	},
	get: func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
		row, err := queries.SlidingWindowLogGet(ctx, tx, db.SlidingWindowLogGetParams{
			Policy: q.policy, Key: q.key, Unit: q.rest(0), Capacity: q.capacity, PeriodUs: q.period, NowUs: q.now,
		})
		return outcome{
			now: row.NowUs, updatedAt: max(row.NowUs, row.UpdatedAtUs), blockedUntil: row.BlockedUntilUs,
			view: logView{units: row.Level, newest: row.NewestAtUs, frees: row.FreesAtUs},
		}, err
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

func logged(row db.SlidingWindowLogFillRow, frees int64) outcome {
	return outcome{
		granted: row.Granted, now: row.UpdatedAtUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
		view: logView{units: row.Level, newest: row.NewestAtUs, frees: frees},
	}
}
