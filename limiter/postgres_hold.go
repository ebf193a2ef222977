package limiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
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
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Burst: q.burst,
				Leak: q.leak, TickUs: q.tick, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
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
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Burst: q.burst, Room: q.room,
				Leak: q.leak, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
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
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Burst: q.burst,
				PeriodUs: q.period, Aligned: q.aligned, FromUs: from, TurnUs: turn, UntilUs: until,
				BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
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
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Burst: q.burst,
				PeriodUs: q.period, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
				ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
			})
			return slid(db.SlidingWindowCounterTakeRow(row)), err
		},
		settle: func(ctx context.Context, tx db.DBTX, p db.TokenBucketSettleParams) (db.TokenBucketSettleRow, error) {
			row, err := queries.SlidingWindowCounterSettle(ctx, tx, db.SlidingWindowCounterSettleParams(p))
			return db.TokenBucketSettleRow(row), err
		},
	},
	SlidingWindowLog: {
		reserve: func(ctx context.Context, tx db.DBTX, q *question, h *holding) (outcome, error) {
			row, err := queries.SlidingWindowLogReserve(ctx, tx, db.SlidingWindowLogReserveParams{
				Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Unit: q.unit, Capacity: q.capacity, Burst: q.burst,
				PeriodUs: q.period, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
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
		Policy: q.policy, Key: q.key, Cost: q.cost, Count: q.count, Capacity: q.capacity, Burst: q.burst,
		Leak: q.leak, BlockForUs: q.blockFor, HoldUs: q.hold, NowUs: q.now, Commit: q.commit, LockTimeout: q.lockTimeout,
		ID: h.id, State: h.state, IdempotencyKey: h.idempotency, LimitUnits: h.limit, TtlUs: h.ttl, RememberUs: h.remember,
	}
}

// reserve is one statement. Only where it met an admission under the same
// idempotency key it looks that up; if that is to be forgotten, it goes first.
func (p postgres) reserve(ctx context.Context, q *question, h *holding) (outcome, error) {
	if !q.possible() { // now, but it may have been admitted before
		before, forgotten, err := p.readBefore(ctx, q, h)
		if err != nil || before != nil && !forgotten {
			return outcome{before: before}, err
		}
		return p.get(ctx, q)
	}
	if h.idempotency != nil && p.tx {
		if o, err := p.prepare(ctx, q, h); err != nil || o.before != nil {
			return o, err
		}
	}
	for range maxTries {
		o, err := p.decide(ctx, q, func(ctx context.Context, tx db.DBTX, q *question) (outcome, error) {
			o, err := holdTables[q.algorithm].reserve(ctx, tx, q, h)
			if !errors.Is(err, pgx.ErrNoRows) {
				return o, err
			}
			if o, err = (outcome{}), nil; h.idempotency != nil {
				o.before, _, err = readBefore(ctx, tx, q, h) // nil: gone between the two statements
			}
			if err == nil && o.before == nil && q.calendar != nil {
				err = errOtherPeriod
			}
			return o, err
		})
		switch {
		case sqlState(err) == uniqueViolation && p.tx:
			return o, fmt.Errorf("%w: %w", ErrRetryTx, err)
		case sqlState(err) == uniqueViolation:
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
	var forgotten bool
	o.before, forgotten, err = p.readBefore(ctx, q, h)
	if err != nil || o.before != nil && !forgotten {
		return o, err
	}
	if forgotten {
		if err := p.forget(ctx, q, h); err != nil {
			return outcome{}, err
		}
	}
	nothing := *q
	nothing.count, nothing.blockFor = 0, 0
	_, err = p.take(ctx, &nothing)
	return outcome{}, err
}

// forget frees an idempotency key whose admission need not be remembered any
// longer. An open hold of it is given back before.
func (p postgres) forget(ctx context.Context, q *question, h *holding) error {
	before, forgotten, err := p.readBefore(ctx, q, h)
	if err != nil || !forgotten {
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

func (p postgres) readBefore(ctx context.Context, q *question, h *holding) (before *held, forgotten bool, err error) {
	err = p.exec(ctx, func(tx db.DBTX) (err error) {
		before, forgotten, err = readBefore(ctx, tx, q, h)
		return err
	})
	return before, forgotten, err
}

// readBefore returns nil if nothing was admitted.
func readBefore(ctx context.Context, tx db.DBTX, q *question, h *holding) (before *held, forgotten bool, err error) {
	row, err := queries.HoldByIdempotency(ctx, tx, db.HoldByIdempotencyParams{
		Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm), IdempotencyKey: *h.idempotency, NowUs: q.now,
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	r := q.rules
	r.burst, r.capacity, r.leak, r.tick, r.period = row.Burst, row.Capacity, row.Leak, row.TickUs, row.PeriodUs
	return &held{
		rules: r, limit: row.LimitUnits, id: row.ID, state: row.State, policy: q.policy, key: q.key,
		reserved: row.Reserved, level: row.Level, endsAt: row.EndsAtUs, countedAt: row.CountedAtUs,
		createdAt: row.CreatedAtUs, expiresAt: row.ExpiresAtUs,
	}, row.Forgotten, err
}

func (p postgres) settle(ctx context.Context, c *settlement) (s settled, err error) {
	found := false
	err = p.runner.do(ctx, func(tx db.DBTX) error {
		row, err := holdTables[c.algorithm].settle(ctx, tx, db.TokenBucketSettleParams{
			ID: c.id, State: c.state, Units: c.units, NowUs: c.now, Commit: c.commit,
		})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		found, s = true, settlementOf(c.algorithm, row)
		return err
	})
	if err == nil && !found {
		return s, fmt.Errorf("%w: %s", ErrNoHold, quote(c.id))
	}
	return s, translate(err, p.tx)
}

func settlementOf(a Algorithm, row db.TokenBucketSettleRow) settled {
	r := rules{
		algorithm: a, burst: row.Burst, capacity: row.Capacity, leak: row.Leak, tick: row.TickUs, period: row.PeriodUs, hold: row.HoldUs,
	}
	s := settled{
		held: held{
			rules: r, limit: row.LimitUnits, state: row.State, policy: row.Policy, key: row.Key,
			reserved: row.Reserved, units: row.UnitsBefore, expiresAt: row.ExpiresAtUs,
		},
		now: row.NowUs, changed: row.Changes, known: row.Known, freed: row.Freed,
	}
	if row.Known {
		s.outcome = outcome{
			now: row.NowUs, updatedAt: row.UpdatedAtUs, blockedUntil: row.BlockedUntilUs,
			view: standing(&r, row.Level, row.Previous, row.AtUs),
		}
	}
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

func (p postgres) open(ctx context.Context, q *question, endsAt int64) (s Statement, err error) {
	err = p.exec(ctx, func(tx db.DBTX) error {
		row, err := queries.HoldsOpen(ctx, tx, db.HoldsOpenParams{
			Policy: q.policy, Key: q.key, Algorithm: string(q.algorithm), EndsAtUs: endsAt,
		})
		s.Holds, s.Held = int(row.Holds), row.Units
		return err
	})
	return s, err
}
