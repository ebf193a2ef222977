package janitor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// holdWait is how long a hold's rows are waited for: who has them for longer is
// at work with them, and the next sweep comes by.
const holdWait = "20ms"

// settle is how holds of each algorithm are ended.
var settle = map[string]func(context.Context, db.DBTX, db.TokenBucketSettleParams) error{
	"leaky_bucket":           ender[db.LeakyBucketSettleParams]((*db.Queries).LeakyBucketSettle),
	"token_bucket":           ender[db.TokenBucketSettleParams]((*db.Queries).TokenBucketSettle),
	"gcra":                   ender[db.GCRASettleParams]((*db.Queries).GCRASettle),
	"fixed_window":           ender[db.FixedWindowSettleParams]((*db.Queries).FixedWindowSettle),
	"sliding_window_counter": ender[db.SlidingWindowCounterSettleParams]((*db.Queries).SlidingWindowCounterSettle),
	"sliding_window_log":     ender[db.SlidingWindowLogSettleParams]((*db.Queries).SlidingWindowLogSettle),
}

// ender gives the tables' statements, whose parameters differ in their types'
// names only, one form.
func ender[P ~struct {
	NowUs       *int64
	Commit      string
	LockTimeout string
	Units       float64
	State       string
	ID          string
}, R any](statement func(*db.Queries, context.Context, db.DBTX, P) (R, error)) func(context.Context, db.DBTX, db.TokenBucketSettleParams) error {
	q := db.New()
	return func(ctx context.Context, conn db.DBTX, p db.TokenBucketSettleParams) error {
		_, err := statement(q, ctx, conn, P(p))
		return err
	}
}

// giveBack gives back what expired holds have set aside, batch after batch,
// until none is left at cutoff but those that somebody is at work with, and those
// that cannot be given back: the error tells of the first.
func (s *sweep) giveBack(ctx context.Context, cutoff int64) (failed error) {
	passed := map[string]bool{} // over
	for {
		if err := s.keepLease(ctx); err != nil || s.removed.HeldElsewhere {
			return errors.Join(failed, err)
		}
		rows := s.cfg.BatchSize + len(passed)
		var expired []db.HoldsExpiredRow
		err := s.statement(ctx, func(ctx context.Context) (err error) {
			expired, err = s.queries.HoldsExpired(ctx, s.pool, db.HoldsExpiredParams{CutoffUs: cutoff, MaxRows: int64(rows)})
			return err
		})
		if err != nil {
			return errors.Join(failed, fmt.Errorf("pglimit: list expired holds: %w", err))
		}
		for _, h := range expired {
			if passed[h.ID] {
				continue
			}
			err := s.giveBackOne(ctx, h, cutoff)
			var answer *pgconn.PgError
			switch {
			case err == nil:
				s.countHold()
				continue
			case errors.As(err, &answer) && answer.Code == lockNotAvailable:
			case errors.As(err, &answer) || errors.Is(err, errNewer):
				failed = cmp.Or(failed, err)
			default: // nobody answers
				return errors.Join(failed, err)
			}
			passed[h.ID] = true
		}
		if len(expired) < rows {
			return failed
		}
	}
}

// errNewer says that a hold is of an algorithm that this version does not know.
var errNewer = errors.New("a newer pglimit made it")

// giveBackOne gives one hold back as of cutoff: by a clock that was set back since,
// it would not have expired, and be found again and again.
func (s *sweep) giveBackOne(ctx context.Context, h db.HoldsExpiredRow, cutoff int64) error {
	end := settle[h.Algorithm]
	if end == nil {
		return fmt.Errorf("pglimit: give back hold %s: no algorithm %q: %w", h.ID, h.Algorithm, errNewer)
	}
	p := db.TokenBucketSettleParams{ID: h.ID, State: "expired", NowUs: &cutoff, LockTimeout: holdWait}
	if err := s.statement(ctx, func(ctx context.Context) error { return end(ctx, s.pool, p) }); err != nil {
		return fmt.Errorf("pglimit: give back hold %s: %w", h.ID, err)
	}
	return nil
}

// countHold adds one hold to what this sweep and all sweeps gave back.
func (s *sweep) countHold() {
	s.removed.HoldsExpired++
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
}
