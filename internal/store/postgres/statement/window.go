package statement

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

var fixedWindow = Table{
	takeMany: fixedWindowTakeMany,
	binary:   &fixedWindowBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.FixedWindowLocked(ctx, tx, db.FixedWindowLockedParams(p)))
	},
	Take: fixedWindowBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		if q.Calendar != nil {
			row, err := Queries.FixedWindowCalendarTake(ctx, tx, db.FixedWindowCalendarTakeParams{
				Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity,
				FromUs: q.Edges.From, TurnUs: q.Edges.Turn, UntilUs: q.Edges.Until, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			})
			return counted(db.FixedWindowTakeRow(row), q.Now), inPeriod(row.Granted, err)
		}
		row, err := Queries.FixedWindowTake(ctx, tx, db.FixedWindowTakeParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity,
			PeriodUs: q.Period, Aligned: q.Aligned, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return counted(row, q.Now), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		if q.Calendar != nil {
			row, err := Queries.FixedWindowCalendarCharge(ctx, tx, db.FixedWindowCalendarChargeParams{
				Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
				FromUs: q.Edges.From, TurnUs: q.Edges.Turn, UntilUs: q.Edges.Until, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			})
			return counted(db.FixedWindowTakeRow(row), q.Now), inPeriod(row.Granted, err)
		}
		row, err := Queries.FixedWindowCharge(ctx, tx, db.FixedWindowChargeParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
			PeriodUs: q.Period, Aligned: q.Aligned, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return counted(db.FixedWindowTakeRow(row), q.Now), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.FixedWindowRefund(ctx, tx, db.FixedWindowRefundParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return counted(db.FixedWindowTakeRow(row), q.Now), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.FixedWindowUndo(ctx, tx, db.FixedWindowUndoParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, EndsAtUs: g.EndsAt, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return counted(db.FixedWindowTakeRow(row), q.Now), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.FixedWindowGet(ctx, tx, db.FixedWindowGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return countedGot(q, row), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.FixedWindowUsage(ctx, tx, db.FixedWindowUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return used(countedGot(q, db.FixedWindowGetRow{
			NowUs: row.NowUs, Level: row.Level, EndsAtUs: row.EndsAtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Reservations, row.Reserved), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.FixedWindowBlock(ctx, tx, db.FixedWindowBlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.FixedWindowUnblock(ctx, tx, db.FixedWindowUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.FixedWindowReset(ctx, tx, db.FixedWindowResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.FixedWindowReserve(ctx, tx, db.FixedWindowReserveParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Burst: q.Burst,
			PeriodUs: q.Period, Aligned: q.Aligned, FromUs: q.Edges.From, TurnUs: q.Edges.Turn, UntilUs: q.Edges.Until,
			BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
		})
		return counted(db.FixedWindowTakeRow(row), q.Now), err
	},
	Settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
		row, err := Queries.FixedWindowSettle(ctx, tx, db.FixedWindowSettleParams(p))
		return db.TokenBucketSettleRow(row), err
	},
}

func countedGot(q *store.Query, row db.FixedWindowGetRow) store.Outcome {
	return continued(q, &algorithm.Window{Count: row.Level, EndsAt: row.EndsAtUs}, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

// counted returns the outcome of a statement that was sent with the clock now, which may be
// nil.
func counted(row db.FixedWindowTakeRow, now *int64) store.Outcome {
	w := windowSeen(row.Level, row.EndsAtUs, row.UpdatedAtUs, now)
	return taken(row.Granted, row.UpdatedAtUs, row.BlockedUntilUs, &w)
}

// windowSeen returns the window of a row as a statement's clock saw it: a row may keep the
// count of a window that is over. If now is nil, the clock is not known; it was at most
// updatedAt.
func windowSeen(count float64, endsAt, updatedAt int64, now *int64) algorithm.Window {
	if now != nil {
		updatedAt = *now
	}
	if updatedAt >= endsAt {
		count = 0
	}
	return algorithm.Window{Count: count, EndsAt: endsAt}
}

var slidingWindowCounter = Table{
	takeMany: slidingWindowCounterTakeMany,
	binary:   &slidingWindowCounterBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.SlidingWindowCounterLocked(ctx, tx, db.SlidingWindowCounterLockedParams(p)))
	},
	Take: slidingWindowCounterBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterTake(ctx, tx, db.SlidingWindowCounterTakeParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity,
			PeriodUs: q.Period, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return slid(q, row), err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterCharge(ctx, tx, db.SlidingWindowCounterChargeParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
			PeriodUs: q.Period, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterRefund(ctx, tx, db.SlidingWindowCounterRefundParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterUndo(ctx, tx, db.SlidingWindowCounterUndoParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, EndsAtUs: g.EndsAt, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterGet(ctx, tx, db.SlidingWindowCounterGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return slidGot(q, row), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.SlidingWindowCounterUsage(ctx, tx, db.SlidingWindowCounterUsageParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now})
		return used(slidGot(q, db.SlidingWindowCounterGetRow{
			NowUs: row.NowUs, Current: row.Current, Previous: row.Previous, PeriodUs: row.PeriodUs, EndsAtUs: row.EndsAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Reservations, row.Reserved), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.SlidingWindowCounterBlock(ctx, tx, db.SlidingWindowCounterBlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.SlidingWindowCounterUnblock(ctx, tx, db.SlidingWindowCounterUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.SlidingWindowCounterReset(ctx, tx, db.SlidingWindowCounterResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.SlidingWindowCounterReserve(ctx, tx, db.SlidingWindowCounterReserveParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Capacity: q.Capacity, Burst: q.Burst,
			PeriodUs: q.Period, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
		})
		return slid(q, db.SlidingWindowCounterTakeRow(row)), err
	},
	Settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
		row, err := Queries.SlidingWindowCounterSettle(ctx, tx, db.SlidingWindowCounterSettleParams(p))
		return db.TokenBucketSettleRow(row), err
	},
}

func slidGot(q *store.Query, row db.SlidingWindowCounterGetRow) store.Outcome {
	s := &algorithm.Counter{Current: row.Current, Previous: row.Previous, Period: row.PeriodUs, EndsAt: row.EndsAtUs}
	return continued(q, s, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
}

// slid moves the windows on: a denial leaves them as they were.
func slid(q *store.Query, row db.SlidingWindowCounterTakeRow) store.Outcome {
	o := slidGot(q, db.SlidingWindowCounterGetRow{
		NowUs: row.UpdatedAtUs, Current: row.Current, Previous: row.Previous, PeriodUs: row.PeriodUs, EndsAtUs: row.EndsAtUs,
		UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
	})
	o.Granted, o.Blocked = max(0, row.Granted), row.Granted < 0
	return o
}

var slidingWindowLog = Table{
	takeMany: slidingWindowLogTakeMany,
	binary:   &slidingWindowLogBinary,
	Locked: func(ctx context.Context, tx db.DBTX, p db.TokenBucketLockedParams) ([]db.TokenBucketLockedRow, error) {
		return lockedRows(Queries.SlidingWindowLogLocked(ctx, tx, db.SlidingWindowLogLockedParams(p)))
	},
	Take: slidingWindowLogBinary.orElse(func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogTake(ctx, tx, db.SlidingWindowLogTakeParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Unit: q.Unit, Capacity: q.Capacity,
			PeriodUs:   q.Period,
			BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		o := logged(db.SlidingWindowLogChargeRow{
			Granted: row.Granted, Level: row.Level, NewestAtUs: row.NewestAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}, row.FreesAtUs)
		return o, err
	}),
	Charge: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogCharge(ctx, tx, db.SlidingWindowLogChargeParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, Capacity: q.Burst,
			PeriodUs: q.Period, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return logged(row, 0), err
	},
	Refund: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogRefund(ctx, tx, db.SlidingWindowLogRefundParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return logged(db.SlidingWindowLogChargeRow(row), 0), err
	},
	Undo: func(ctx context.Context, tx db.DBTX, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogUndo(ctx, tx, db.SlidingWindowLogUndoParams{
			Policy: q.Policy, Key: q.Key, Units: q.Units, CountedAtUs: g.At, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
		})
		return logged(db.SlidingWindowLogChargeRow(row), 0), err
	},
	Get: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogGet(ctx, tx, db.SlidingWindowLogGetParams{
			Policy: q.Policy, Key: q.Key, Unit: q.Rest(0), Capacity: q.Capacity, PeriodUs: q.Period, NowUs: q.Now,
		})
		return logGot(row), err
	},
	Usage: func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Usage, error) {
		row, err := Queries.SlidingWindowLogUsage(ctx, tx, db.SlidingWindowLogUsageParams{
			Policy: q.Policy, Key: q.Key, Unit: q.Rest(0), Capacity: q.Capacity, PeriodUs: q.Period, NowUs: q.Now,
		})
		return used(logGot(db.SlidingWindowLogGetRow{
			NowUs: row.NowUs, Level: row.Level, NewestAtUs: row.NewestAtUs, FreesAtUs: row.FreesAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}), row.Reservations, row.Reserved), err
	},
	Block: func(ctx context.Context, tx db.DBTX, p db.TokenBucketBlockParams) error {
		return Queries.SlidingWindowLogBlock(ctx, tx, db.SlidingWindowLogBlockParams(p))
	},
	Unblock: func(ctx context.Context, tx db.DBTX, p db.TokenBucketUnblockParams) error {
		return Queries.SlidingWindowLogUnblock(ctx, tx, db.SlidingWindowLogUnblockParams(p))
	},
	Reset: func(ctx context.Context, tx db.DBTX, p db.TokenBucketResetParams) (int64, error) {
		return Queries.SlidingWindowLogReset(ctx, tx, db.SlidingWindowLogResetParams(p))
	},
	Reserve: func(ctx context.Context, tx db.DBTX, q *store.Query, a *store.Admission) (store.Outcome, error) {
		row, err := Queries.SlidingWindowLogReserve(ctx, tx, db.SlidingWindowLogReserveParams{
			Policy: q.Policy, Key: q.Key, Cost: q.Cost, Count: q.Count, Unit: q.Unit, Capacity: q.Capacity, Burst: q.Burst,
			PeriodUs: q.Period, BlockForUs: q.BlockFor, LifetimeUs: q.Lifetime, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: WaitText(q.LockWait),
			ID: a.ID, State: string(a.State), IdempotencyKey: idempotency(a), LimitUnits: a.Limit, TtlUs: a.TTL, RememberUs: a.Remember,
		})
		return logged(db.SlidingWindowLogChargeRow{
			Granted: row.Granted, Level: row.Level, NewestAtUs: row.NewestAtUs,
			UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		}, row.FreesAtUs), err
	},
	Settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
		row, err := Queries.SlidingWindowLogSettle(ctx, tx, db.SlidingWindowLogSettleParams(p))
		return db.TokenBucketSettleRow(row), err
	},
}

func logGot(row db.SlidingWindowLogGetRow) store.Outcome {
	return store.Outcome{
		Decided: true, Now: row.NowUs, UpdatedAt: max(row.NowUs, row.UpdatedAtUs), BlockedUntil: row.BlockedUntilUs,
		View: algorithm.LogView{Units: row.Level, Newest: row.NewestAtUs, Frees: row.FreesAtUs},
	}
}

func logged(row db.SlidingWindowLogChargeRow, frees int64) store.Outcome {
	return taken(row.Granted, row.UpdatedAtUs, row.BlockedUntilUs, algorithm.LogView{Units: row.Level, Newest: row.NewestAtUs, Frees: frees})
}

func fixedWindowTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.FixedWindowTakeMany(ctx, tx, db.FixedWindowTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		PeriodsUs: b.periods, AreAligned: b.aligned, FromsUs: b.froms, TurnsUs: b.turns, UntilsUs: b.untils, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	})
	for _, r := range rows {
		b.put(r.Policy, r.Key, counted(db.FixedWindowTakeRow{
			Granted: r.Granted, Level: r.Level, EndsAtUs: r.EndsAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}, b.now))
	}
	return b.done(err)
}

func slidingWindowCounterTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.SlidingWindowCounterTakeMany(ctx, tx, db.SlidingWindowCounterTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		PeriodsUs: b.periods, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	})
	for _, r := range rows {
		if w := b.row(r.Policy, r.Key); w != nil {
			b.answer(w, slid(w.Query, db.SlidingWindowCounterTakeRow{
				Granted: r.Granted, Current: r.Current, Previous: r.Previous, PeriodUs: r.PeriodUs, EndsAtUs: r.EndsAtUs,
				UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
			}))
		}
	}
	return b.done(err)
}

func slidingWindowLogTakeMany(ctx context.Context, tx db.DBTX, b *batch) error {
	rows, err := Queries.SlidingWindowLogTakeMany(ctx, tx, db.SlidingWindowLogTakeManyParams{
		Policies: b.policies, Keys: b.keys, Costs: b.costs, Counts: b.counts, Capacities: b.capacities,
		PeriodsUs: b.periods, LifetimesUs: b.lifetimes, BlocksForUs: b.blocks,
		NowUs: b.now, Commit: b.commit, LockTimeout: b.lockTimeout,
	})
	for _, r := range rows {
		b.put(r.Policy, r.Key, logged(db.SlidingWindowLogChargeRow{
			Granted: r.Granted, Level: r.Level, NewestAtUs: r.NewestAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}, r.FreesAtUs))
	}
	return b.done(err)
}
