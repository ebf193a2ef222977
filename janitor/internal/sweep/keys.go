package sweep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
	"github.com/pglimit/pglimit/janitor/internal/tables"
)

// When the rows of a policy with MaxKeys are counted.
const (
	// quiet is longer than a permit, what a process knows of a row, and the statements that
	// use them: see package keybound. After that long without a new key or a reset, no row can
	// come that is not counted.
	quiet = 7 * time.Minute
	// recounted is how often the rows are counted otherwise, in case that a program which does
	// not know the bound has inserted some.
	recounted = 10 * time.Minute
)

// recount corrects the counts of keys: a process may have ended with permits that it had not
// used, and a reset has deleted rows.
func (s *Sweep) recount(ctx context.Context, cutoff int64) error {
	all := tables.Shard{Distributed: s.shards[0].Distributed, Key: ""}
	var due []db.KeysUncountedRow
	err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) (err error) {
		due, err = db.New().KeysUncounted(ctx, all.Of(tx), db.KeysUncountedParams{CutoffUs: cutoff, QuietUs: quiet.Microseconds(), EveryUs: recounted.Microseconds()})
		return err
	})
	if err != nil {
		return fmt.Errorf("pglimit: list the counts of keys: %w", err)
	}
	var failed []error
	for _, c := range due {
		if err := s.keepLease(ctx); err != nil || s.elsewhere {
			return errors.Join(append(failed, err)...)
		}
		if err := s.recountOne(ctx, c, all, cutoff); err != nil {
			failed = append(failed, fmt.Errorf("pglimit: count the keys of policy %s: %w", c.Policy, err))
		}
	}
	return errors.Join(failed...)
}

func (s *Sweep) recountOne(ctx context.Context, c db.KeysUncountedRow, all tables.Shard, cutoff int64) error {
	a := algorithm.Name(c.Algorithm)
	if a.Index() < 0 { // a newer pglimit's, whose janitor counts it
		return nil
	}
	var rows int64
	for _, shard := range s.shards {
		err := s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) error {
			n, err := statement.Keys(ctx, shard.Of(tx), a, c.Policy)
			rows += n
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.Lease.Statement(ctx, func(ctx context.Context, tx db.DBTX) error {
		_, err := db.New().KeysRecount(ctx, all.Of(tx), db.KeysRecountParams{
			Policy: c.Policy, Algorithm: c.Algorithm, Keys: rows, Quiet: c.Quiet, TakenAtUs: c.TakenAtUs, CutoffUs: cutoff,
		})
		return err
	})
}
