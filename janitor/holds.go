package janitor

import (
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
// until none is left at cutoff but those that somebody is at work with.
func (s *sweep) giveBack(ctx context.Context, cutoff int64) error {
	passed := 0 // over
	for {
		if err := s.keepLease(ctx); err != nil || s.removed.HeldElsewhere {
			return err
		}
		var expired []db.HoldsExpiredRow
		err := s.statement(ctx, func(ctx context.Context) (err error) {
			expired, err = s.queries.HoldsExpired(ctx, s.pool, db.HoldsExpiredParams{CutoffUs: cutoff, MaxRows: int64(s.cfg.BatchSize + passed)})
			return err
		})
		if err != nil {
			return fmt.Errorf("pglimit: list expired holds: %w", err)
		}
		ended := 0
		for _, h := range expired {
			end := settle[h.Algorithm]
			if end == nil {
				return fmt.Errorf("pglimit: hold %s: no algorithm %q: a newer pglimit made it", h.ID, h.Algorithm)
			}
			p := db.TokenBucketSettleParams{ID: h.ID, State: "expired", NowUs: s.nowUs(), LockTimeout: holdWait}
			err := s.statement(ctx, func(ctx context.Context) error { return end(ctx, s.pool, p) })
			var answer *pgconn.PgError
			switch {
			case err == nil:
				ended++
			case errors.As(err, &answer) && answer.Code == lockNotAvailable:
			default:
				return fmt.Errorf("pglimit: give back hold %s: %w", h.ID, err)
			}
		}
		s.removed.HoldsExpired += int64(ended)
		passed += len(expired) - passed - ended
		if ended < s.cfg.BatchSize {
			return nil
		}
	}
}
