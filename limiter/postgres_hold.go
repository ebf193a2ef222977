package limiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

// holds is how one algorithm's statements about holds are called.
type holds struct {
	reserve func(context.Context, db.DBTX, *question, *holding) (outcome, error)
	settle  func(context.Context, db.DBTX, db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error)
}

var holdTables = map[Algorithm]*holds{
	LeakyBucket: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.LeakyBucketReserve(ctx, tx, db.LeakyBucketReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Burst: q.Burst,
				Leak: q.Leak, TickUs: q.Tick, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return leaky(db.LeakyBucketTakeRow(row)), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.LeakyBucketSettle(ctx, tx, db.LeakyBucketSettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
	LeakyBucketQueue: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.LeakyBucketQueueReserve(ctx, tx, db.LeakyBucketQueueReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Burst: q.Burst, Room: q.room,
				Leak: q.Leak, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return queued(db.LeakyBucketQueueTakeRow(row)), err
		},
	},
	TokenBucket: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.TokenBucketReserve(ctx, tx, bucketReserve(q, h))
			return poured(db.TokenBucketTakeRow(row)), err
		},
		settle: queries.TokenBucketSettle,
	},
	GCRA: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.GCRAReserve(ctx, tx, db.GCRAReserveParams(bucketReserve(q, h)))
			return poured(db.TokenBucketTakeRow(row)), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.GCRASettle(ctx, tx, db.GCRASettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
	FixedWindow: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			from, turn, until := q.turns(q.now)
			row, err := queries.FixedWindowReserve(ctx, tx, db.FixedWindowReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Burst: q.Burst,
				PeriodUs: q.Period, Aligned: q.Aligned, FromUs: from, TurnUs: turn, UntilUs: until,
				BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return counted(db.FixedWindowTakeRow(row)), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.FixedWindowSettle(ctx, tx, db.FixedWindowSettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
	SlidingWindowCounter: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.SlidingWindowCounterReserve(ctx, tx, db.SlidingWindowCounterReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Burst: q.Burst,
				PeriodUs: q.Period, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return slid(q, db.SlidingWindowCounterTakeRow(row)), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.SlidingWindowCounterSettle(ctx, tx, db.SlidingWindowCounterSettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
	SlidingWindowLog: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.SlidingWindowLogReserve(ctx, tx, db.SlidingWindowLogReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Unit: q.unit, Capacity: q.Capacity, Burst: q.Burst,
				PeriodUs: q.Period, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return logged(db.SlidingWindowLogFillRow{
				Granted: row.Granted, Level: row.Level, NewestAtUs: row.NewestAtUs,
				UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
			}, row.FreesAtUs), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.SlidingWindowLogSettle(ctx, tx, db.SlidingWindowLogSettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
}

func bucketReserve(q *question, h *holding) db.TokenBucketReserveParams {
	return db.TokenBucketReserveParams{
		Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.Capacity, Burst: q.Burst,
		Leak: q.Leak, BlockForUs: q.BlockFor, HoldUs: q.Lifetime, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
	}
}

// reserve is one statement. Only where it met an admission under the same
// idempotency key it looks that up; if that is to be forgotten, it goes first.
func (p postgres) reserve(ctx context.Context, q *question, h *holding) (outcome, error) {
	if !q.possible() { // now, but it may have been admitted before
		before, err := p.readBefore(ctx, q, h)
		if err != nil || before != nil && !before.free() {
			return outcome{before: heldOf(before)}, err
		}
		return p.get(ctx, q)
	}
	if h.idempotency != nil && p.tx {
		if o, err := p.prepare(ctx, q, h); err != nil || o.before != nil {
			return o, err
		}
	}
	for range maxTries {
		overdue := false
		o, err := p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
			o, err := holdTables[q.algorithm].reserve(ctx, tx, q, h)
			if !errors.Is(err, pgx.ErrNoRows) {
				return o, err
			}
			var b *before
			if o, err = (outcome{}), nil; h.idempotency != nil {
				b, err = readBefore(ctx, tx, q, h) // nil: gone between the two statements
			}
			switch {
			case b != nil && b.free():
				overdue = true
			case b != nil:
				o.before = &b.held
			case err == nil && q.Calendar != nil:
				err = errOtherPeriod
			}
			return o, err
		})
		switch {
		case sqlState(err) == uniqueViolation && p.tx:
			return o, fmt.Errorf("%w: %w", ErrRetryTx, err)
		case sqlState(err) == uniqueViolation, err == nil && overdue:
			if err := p.forget(ctx, q, h); err != nil {
				return outcome{}, err
			}
		case err != nil || o.before != nil || o.view != nil:
			return o, err
		}
	}
	return outcome{}, fmt.Errorf("%w: admissions under the idempotency key %s come and go", ErrUnavailable, quote(*h.idempotency))
}

// prepare makes sure that reserve cannot fail in the caller's transaction: it
// locks the key's row, so that whoever had it has committed what reserve reads.
func (p postgres) prepare(ctx context.Context, q *question, h *holding) (o outcome, err error) {
	before, err := p.readBefore(ctx, q, h)
	if err != nil || before != nil && !before.free() {
		return outcome{before: heldOf(before)}, err
	}
	if before != nil {
		if err := p.forget(ctx, q, h); err != nil {
			return outcome{}, err
		}
	}
	nothing := *q
	nothing.count, nothing.BlockFor = 0, 0
	_, err = p.take(ctx, &nothing)
	return outcome{}, err
}

// forget frees an idempotency key whose admission need not be remembered any
// longer, or whose hold has expired: that is given back, which frees the key too.
func (p postgres) forget(ctx context.Context, q *question, h *holding) error {
	before, err := p.readBefore(ctx, q, h)
	if err != nil || before == nil || !before.free() {
		return err
	}
	if before.state == stateHeld {
		c := settlement{id: before.id, algorithm: q.algorithm, state: stateExpired, now: q.now, commit: q.commit}
		if _, err := p.settle(ctx, &c); err != nil && !errors.Is(err, ErrNoHold) {
			return err
		}
	}
	return p.exec(ctx, func(tx db.DBTX) error {
		_, err := queries.HoldForget(ctx, tx, db.HoldForgetParams{
			Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm), IdempotencyKey: *h.idempotency, NowUs: q.now,
		})
		return err
	})
}

// before is what was admitted under an idempotency key.
type before struct {
	held
	forgotten bool // it need not be remembered any longer
	overdue   bool // it is an open hold that has expired
}

// free tells whether the key may be used again.
func (b *before) free() bool { return b.forgotten || b.overdue }

// heldOf is nil for nil.
func heldOf(b *before) *held {
	if b == nil {
		return nil
	}
	return &b.held
}

func (p postgres) readBefore(ctx context.Context, q *question, h *holding) (b *before, err error) {
	err = p.exec(ctx, func(tx db.DBTX) (err error) {
		b, err = readBefore(ctx, tx, q, h)
		return err
	})
	return b, err
}

// readBefore returns nil if nothing was admitted.
func readBefore(ctx context.Context, tx db.DBTX, q *question, h *holding) (*before, error) {
	row, err := queries.HoldByIdempotency(ctx, tx, db.HoldByIdempotencyParams{
		Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm), IdempotencyKey: *h.idempotency, NowUs: q.now,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	r := q.Rules
	r.Burst, r.Capacity, r.Leak, r.Tick, r.Period = row.Burst, row.Capacity, row.Leak, row.TickUs, row.PeriodUs
	return &before{forgotten: row.Forgotten, overdue: row.Overdue, held: held{
		Rules: r, algorithm: q.algorithm, limit: row.LimitUnits, id: row.ID, state: row.State, policy: q.policy, key: q.key,
		reserved: row.Reserved, level: row.Level, endsAt: row.EndsAtUs, countedAt: row.CountedAtUs,
		createdAt: row.CreatedAtUs, expiresAt: row.ExpiresAtUs,
	}}, err
}

func (p postgres) settle(ctx context.Context, c *settlement) (s settled, err error) {
	found := false
	err = p.runner.do(ctx, func(tx db.DBTX) error {
		row, err := holdTables[c.algorithm].settle(ctx, tx, db.TokenBucketSettleParams{
			ID: c.id, State: c.state, Units: c.units, NowUs: c.now, Commit: c.commit,
		})
		if err != nil {
			if errors.Is(err, pgx.ErrNoRows) {
				err = nil
			}
			return err
		}
		found, s = true, settlementOf(c.algorithm, row)
		return nil
	})
	if err == nil && !found {
		return s, fmt.Errorf("%w: %s", ErrNoHold, quote(c.id))
	}
	return s, translate(err, p.tx)
}

func settlementOf(a Algorithm, row db.TokenBucketSettleRow) settled {
	r := algorithm.Rules{
		Burst: row.Burst, Capacity: row.Capacity, Leak: row.Leak, Tick: row.TickUs, Period: row.PeriodUs,
	}
	s := settled{
		held: held{
			Rules: r, algorithm: a, limit: row.LimitUnits, state: row.State, policy: row.Policy, key: row.Key,
			reserved: row.Reserved, units: row.UnitsBefore, expiresAt: row.ExpiresAtUs,
		},
		now: row.NowUs, changed: row.Changes, freed: row.Freed,
	}
	var now algorithm.State
	switch a {
	case FixedWindow:
		now = &algorithm.Window{Count: row.Level, EndsAt: row.AtUs}
	case SlidingWindowCounter:
		now = &algorithm.Counter{Current: row.Level, Previous: row.Previous, EndsAt: row.AtUs, Period: row.WindowUs}
	case SlidingWindowLog:
		s.outcome = logGot(db.SlidingWindowLogGetRow{
			NowUs: row.NowUs, Level: row.Level, NewestAtUs: row.AtUs, UpdatedAtUs: row.UpdatedAtUs, BlockedUntilUs: row.BlockedUntilUs,
		})
		return s
	default:
		now = &algorithm.Bucket{Units: row.Level, LeakedAt: row.AtUs}
	}
	s.outcome = continued(&question{Rules: r}, now, row.NowUs, row.UpdatedAtUs, row.BlockedUntilUs)
	return s
}

func (p postgres) due(ctx context.Context, q *question) (ids []string, err error) {
	err = p.exec(ctx, func(tx db.DBTX) (err error) {
		ids, err = queries.HoldsDue(ctx, tx, db.HoldsDueParams{
			Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm), NowUs: q.now, MaxRows: maxDue,
		})
		return err
	})
	return ids, err
}

func (p postgres) nextDue(ctx context.Context) (wait int64, err error) {
	err = p.exec(ctx, func(tx db.DBTX) error {
		row, err := queries.HoldsNext(ctx, tx)
		wait = noHold
		if row.ExpiresAtUs != noHold {
			wait = row.ExpiresAtUs - row.NowUs
		}
		return err
	})
	return wait, err
}
