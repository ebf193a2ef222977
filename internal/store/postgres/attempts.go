package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

func init() { exec.DistributeLater(distributed) }

func distributed() {
	q := statement.Queries
	exec.Distribute(q.AttemptBegin)
	exec.Distribute(q.AttemptFailed)
	exec.Distribute(q.AttemptSucceeded)
	exec.Distribute(q.AttemptGet)
	exec.Distribute(exec.WithoutRow(q.AttemptHold))
	exec.Distribute(exec.WithoutRow(q.AttemptBlock))
	exec.Distribute(exec.WithoutRow(q.AttemptUnblock))
	exec.Distribute(exec.WithoutRow(q.AttemptReset))
}

// attempts carries out an op about attempts: in one statement, if it is not about all rows of
// the key.
func (p Store) attempts(ctx context.Context, op *store.Op) error {
	mode := exec.Statement
	if op.Kind == store.Unblock || op.Kind == store.Reset {
		mode = exec.Transaction // the second statement sees the rows that were made while the first waited
	}
	found := true
	err := exec.Translate(p.runner.Run(ctx, mode, func(tx db.DBTX) (err error) {
		tx = p.at(tx, op.Key)
		if mode == exec.Transaction {
			q := &op.Query
			err = statement.Queries.AttemptHold(ctx, tx, db.AttemptHoldParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now, Commit: string(q.Commit), LockTimeout: statement.WaitText(q.LockWait)})
		}
		if err == nil {
			err = attempt(ctx, tx, op)
		}
		if found = !errors.Is(err, pgx.ErrNoRows); !found {
			return nil // an answer: the circuit breaker must not take it for a failure
		}
		return statement.AsLocked(ctx, op.LockWait, err)
	}), p.tx)
	if err == nil && !found {
		err = store.NoTicket(op)
	}
	return err
}

// attempt sends the op's statement. The error is pgx.ErrNoRows if no such attempt is under way.
func attempt(ctx context.Context, tx db.DBTX, op *store.Op) error {
	q, a, s := &op.Query, op.Attempt, statement.Queries
	commit, wait := string(q.Commit), statement.WaitText(q.LockWait)
	switch op.Kind {
	case store.Attempt:
		r := &a.Rules
		row, err := s.AttemptBegin(ctx, tx, db.AttemptBeginParams{
			Policy: q.Policy, Key: q.Key, Source: a.Source, NowUs: q.Now, ID: op.ID, TtlUs: a.TTL, LimitFailures: r.Limit, AtOnce: r.AtOnce, QuietUs: r.Quiet,
			BlockForUs: r.BlockFor, BlockGrowth: r.Growth, BlockMaxUs: r.BlockMax, Commit: commit, LockTimeout: wait,
		})
		if err != nil {
			return err
		}
		a.Granted = row.Granted
		return tried(op, row.NowUs, row.Ends, algorithm.Tries{Failures: row.Failures, WaitsUntil: row.WaitsUntilUs, ForgetAt: row.ForgetAtUs, BlockedUntil: row.BlockedUntilUs, UpdatedAt: row.UpdatedAtUs})
	case store.Failed:
		row, err := s.AttemptFailed(ctx, tx, db.AttemptFailedParams{ID: op.ID, Policy: q.Policy, Key: q.Key, NowUs: q.Now, Commit: commit, LockTimeout: wait})
		if err != nil {
			return err
		}
		a.Rules = algorithm.AttemptRules{Limit: row.LimitFailures, AtOnce: row.AtOnce, Quiet: row.QuietUs, BlockFor: row.BlockForUs, Growth: row.BlockGrowth, BlockMax: row.BlockMaxUs}
		return tried(op, row.NowUs, row.Ends, algorithm.Tries{Failures: row.Failures, WaitsUntil: row.WaitsUntilUs, ForgetAt: row.ForgetAtUs, BlockedUntil: row.BlockedUntilUs, UpdatedAt: row.UpdatedAtUs})
	case store.Succeeded:
		row, err := s.AttemptSucceeded(ctx, tx, db.AttemptSucceededParams{KnownForUs: store.KnownFor, MostKnown: store.MostKnown, ID: op.ID, Policy: q.Policy, Key: q.Key, NowUs: q.Now, Commit: commit, LockTimeout: wait})
		if err != nil {
			return err
		}
		return tried(op, row.NowUs, "", algorithm.Tries{UpdatedAt: row.UpdatedAtUs})
	case store.GetAttempts:
		row, err := s.AttemptGet(ctx, tx, db.AttemptGetParams{NowUs: q.Now, Policy: q.Policy, Key: q.Key})
		if err == nil {
			err = tried(op, row.NowUs, row.Ends, algorithm.Tries{Failures: row.Failures, WaitsUntil: row.WaitsUntilUs, ForgetAt: row.ForgetAtUs, BlockedUntil: row.BlockedUntilUs, UpdatedAt: max(row.UpdatedAtUs, row.NowUs)})
		}
		if err == nil {
			a.Tries.Fold(&a.Rules, a.Tries.UpdatedAt)
		}
		return err
	case store.Block:
		return s.AttemptBlock(ctx, tx, db.AttemptBlockParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now, ForUs: op.ForUs, Commit: commit, LockTimeout: wait})
	case store.Unblock:
		return s.AttemptUnblock(ctx, tx, db.AttemptUnblockParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now, Commit: commit, LockTimeout: wait})
	case store.Reset:
		return s.AttemptReset(ctx, tx, db.AttemptResetParams{Policy: q.Policy, Key: q.Key, Commit: commit, LockTimeout: wait})
	}
	return fmt.Errorf("pglimit: no statement of attempts for kind %d", op.Kind)
}

// tried sets the outcome of an op to a row. ends are those of its tickets.
func tried(op *store.Op, now int64, ends string, t algorithm.Tries) error {
	if ends != "" {
		for end := range strings.SplitSeq(ends, ",") {
			us, err := strconv.ParseInt(end, 10, 64)
			if err != nil {
				return fmt.Errorf("pglimit: read the ends of the tickets: %w", err)
			}
			t.Ends = append(t.Ends, us)
		}
	}
	op.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: t.UpdatedAt}
	op.Attempt.Tries = &t
	return nil
}
