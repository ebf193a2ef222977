package limiter

import (
	"context"
	"fmt"
	"sync"

	"github.com/pglimit/pglimit/db"
)

// statement is a TakeMany: its rows, and what it takes of them as arrays. It
// uses the arrays that its algorithm has.
type statement struct {
	batch []*row // room for drain
	rows  []*row

	policies, keys                   []string
	costs, counts, capacities, leaks []float64
	ticks, periods, holds, blocks    []int64
	aligned                          []bool
	froms, turns, untils             []int64 // empty, or up to the last row of a calendar

	now         *int64
	commit      string
	lockTimeout string

	found int // rows that have come back
}

var statements = sync.Pool{New: func() any { return new(statement) }}

// reset makes the arrays from rows. now is Config.Now's clock, if there is one.
func (s *statement) reset(rows []*row, now *int64) {
	*s = statement{
		batch: s.batch, rows: rows,
		policies: s.policies[:0], keys: s.keys[:0],
		costs: s.costs[:0], counts: s.counts[:0], capacities: s.capacities[:0], leaks: s.leaks[:0],
		ticks: s.ticks[:0], periods: s.periods[:0], holds: s.holds[:0], blocks: s.blocks[:0],
		aligned: s.aligned[:0],
		froms:   s.froms[:0], turns: s.turns[:0], untils: s.untils[:0],
		now: now,
	}
	for i, r := range rows {
		q := r.q
		s.policies = append(s.policies, q.policy)
		s.keys = append(s.keys, q.key)
		s.costs = append(s.costs, q.cost)
		s.counts = append(s.counts, float64(r.count))
		s.capacities = append(s.capacities, q.Capacity)
		s.holds = append(s.holds, q.Lifetime)
		s.blocks = append(s.blocks, q.BlockFor)
		switch q.algorithm {
		case LeakyBucket:
			s.leaks = append(s.leaks, q.Leak)
			s.ticks = append(s.ticks, q.Tick)
		case FixedWindow:
			s.periods = append(s.periods, q.Period)
			s.aligned = append(s.aligned, q.Aligned)
			if q.Calendar != nil {
				s.turn(i, q)
			}
		case SlidingWindowCounter, SlidingWindowLog:
			s.periods = append(s.periods, q.Period)
		default:
			s.leaks = append(s.leaks, q.Leak)
		}
	}
}

// turn tells the row at i of its calendar. Rows without one take no notice of
// these arrays, which are left empty unless there are calendars.
func (s *statement) turn(i int, q *question) {
	for len(s.turns) < i {
		s.froms, s.turns, s.untils = append(s.froms, 0), append(s.turns, 0), append(s.untils, 0)
	}
	from, turn, until := q.turns(s.now)
	s.froms, s.turns, s.untils = append(s.froms, from), append(s.turns, turn), append(s.untils, until)
}

// put gives what came back for a key to its row.
func (s *statement) put(policy, key string, o outcome) {
	if r := s.row(policy, key); r != nil {
		s.answer(r, o)
	}
}

// row is that of a key, nil if there is none. They come back in no order that can be
// relied on, though mostly in that of the arrays.
func (s *statement) row(policy, key string) *row {
	n := len(s.rows)
	for i := range n {
		j := (s.found + i) % n
		if s.keys[j] == key && s.policies[j] == policy {
			s.found = j + 1
			return s.rows[j]
		}
	}
	return nil
}

func (s *statement) answer(r *row, o outcome) {
	if s.now != nil {
		o.now = *s.now
	}
	r.outcome = o
}

// done checks that each row has its outcome.
func (s *statement) done(err error) error {
	for i, r := range s.rows {
		if err == nil && r.outcome.view == nil {
			if r.q.Calendar != nil {
				return errOtherPeriod
			}
			return fmt.Errorf("no row came back for %s and %s", quote(s.policies[i]), quote(s.keys[i]))
		}
	}
	return err
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

func leakyBucketTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.LeakyBucketTakeMany(ctx, tx, db.LeakyBucketTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		Leaks: s.leaks, TicksUs: s.ticks, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	})
	for _, r := range rows {
		s.put(r.Policy, r.Key, leaky(db.LeakyBucketTakeRow{
			Granted: r.Granted, Level: r.Level, LeakedAtUs: r.LeakedAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return s.done(err)
}

func leakyBucketQueueTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.LeakyBucketQueueTakeMany(ctx, tx, db.LeakyBucketQueueTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		Leaks: s.leaks, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	})
	for _, r := range rows {
		s.put(r.Policy, r.Key, queued(db.LeakyBucketQueueTakeRow{
			Granted: r.Granted, Level: r.Level, Ticket: r.Ticket, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return s.done(err)
}

func tokenBucketTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.TokenBucketTakeMany(ctx, tx, bucketTakeMany(s))
	for _, r := range rows {
		s.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return s.done(err)
}

func gcraTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.GCRATakeMany(ctx, tx, db.GCRATakeManyParams(bucketTakeMany(s)))
	for _, r := range rows {
		s.put(r.Policy, r.Key, poured(db.TokenBucketTakeRow{
			Granted: r.Granted, Level: r.Level, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return s.done(err)
}

func bucketTakeMany(s *statement) db.TokenBucketTakeManyParams {
	return db.TokenBucketTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		Leaks: s.leaks, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	}
}

func fixedWindowTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.FixedWindowTakeMany(ctx, tx, db.FixedWindowTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		PeriodsUs: s.periods, AreAligned: s.aligned, FromsUs: s.froms, TurnsUs: s.turns, UntilsUs: s.untils, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	})
	for _, r := range rows {
		s.put(r.Policy, r.Key, counted(db.FixedWindowTakeRow{
			Granted: r.Granted, Level: r.Level, EndsAtUs: r.EndsAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}))
	}
	return s.done(err)
}

func slidingWindowCounterTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.SlidingWindowCounterTakeMany(ctx, tx, db.SlidingWindowCounterTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		PeriodsUs: s.periods, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	})
	for _, r := range rows {
		if w := s.row(r.Policy, r.Key); w != nil {
			s.answer(w, slid(w.q, db.SlidingWindowCounterTakeRow{
				Granted: r.Granted, Current: r.Current, Previous: r.Previous, PeriodUs: r.PeriodUs, EndsAtUs: r.EndsAtUs,
				UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
			}))
		}
	}
	return s.done(err)
}

func slidingWindowLogTakeMany(ctx context.Context, tx db.DBTX, s *statement) error {
	rows, err := queries.SlidingWindowLogTakeMany(ctx, tx, db.SlidingWindowLogTakeManyParams{
		Policies: s.policies, Keys: s.keys, Costs: s.costs, Counts: s.counts, Capacities: s.capacities,
		PeriodsUs: s.periods, HoldsUs: s.holds, BlocksForUs: s.blocks,
		NowUs: s.now, Commit: s.commit, LockTimeout: s.lockTimeout,
	})
	for _, r := range rows {
		s.put(r.Policy, r.Key, logged(db.SlidingWindowLogFillRow{
			Granted: r.Granted, Level: r.Level, NewestAtUs: r.NewestAtUs, UpdatedAtUs: r.UpdatedAtUs, BlockedUntilUs: r.BlockedUntilUs,
		}, r.FreesAtUs))
	}
	return s.done(err)
}
