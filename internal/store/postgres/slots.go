package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

func init() { exec.DistributeLater(distributedSlots) }

func distributedSlots() {
	q := statement.Queries
	exec.Distribute(q.SlotAcquire)
	exec.Distribute(q.SlotRenew)
	exec.Distribute(q.SlotRelease)
	exec.Distribute(q.SlotGet)
	exec.Distribute(exec.WithoutRow(q.SlotBlock))
	exec.Distribute(exec.WithoutRow(q.SlotUnblock))
	exec.Distribute(exec.WithoutRow(q.SlotReset))
}

// slots carries out an op about slots, in one statement.
func (p Store) slots(ctx context.Context, op *store.Op) error {
	found := true
	err := p.exec(ctx, op.LockWait, op.Key, func(tx db.DBTX) error {
		err := slot(ctx, tx, op)
		if found = !errors.Is(err, pgx.ErrNoRows); !found {
			return nil // an answer: the circuit breaker must not take it for a failure
		}
		return err
	})
	if err == nil && !found {
		err = store.NoSlot(op)
	}
	return err
}

// slot sends the op's statement. The error is pgx.ErrNoRows if no such slot is held.
func slot(ctx context.Context, tx db.DBTX, op *store.Op) error {
	q, h, o, s := &op.Query, op.Slot, &op.Outcome, statement.Queries
	commit, wait := string(q.Commit), statement.WaitText(q.LockWait)
	switch op.Kind {
	case store.Acquire:
		row, err := s.SlotAcquire(ctx, tx, db.SlotAcquireParams{
			Policy: q.Policy, Key: q.Key, ID: op.ID, Cost: h.Cost, NowUs: q.Now, TtlUs: h.TTL, LimitUnits: h.Limit, PeriodUs: h.Period, LockTimeout: wait, Commit: commit,
		})
		h.Granted, h.Held, h.Slots, h.Fence, h.EmptyAt, h.FreeAt, h.EndsAt = row.Granted, row.Held, row.Slots, row.Fence, row.LastUs, row.FreeAtUs, row.UpdatedAtUs+h.TTL
		*o = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: row.UpdatedAtUs, BlockedUntil: row.BlockedUntilUs}
		return err
	case store.Renew:
		row, err := s.SlotRenew(ctx, tx, db.SlotRenewParams{Policy: q.Policy, Key: q.Key, ID: op.ID, NowUs: q.Now, TtlUs: h.TTL, LockTimeout: wait, Commit: commit})
		h.Held, h.Limit, h.Slots, h.EmptyAt, h.EndsAt = row.Held, row.LimitUnits, row.Slots, row.LastUs, row.EndsAtUs
		*o = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: row.UpdatedAtUs}
		return err
	case store.Release:
		row, err := s.SlotRelease(ctx, tx, db.SlotReleaseParams{Policy: q.Policy, Key: q.Key, ID: op.ID, NowUs: q.Now, LockTimeout: wait, Commit: commit})
		h.Held, h.Limit, h.Slots, h.EmptyAt = row.Held, row.LimitUnits, row.Slots, row.LastUs
		*o = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: row.UpdatedAtUs}
		return err
	case store.GetSlots:
		row, err := s.SlotGet(ctx, tx, db.SlotGetParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now, Cost: h.Cost, LimitUnits: h.Limit})
		h.Held, h.Slots, h.Fence, h.EmptyAt, h.FreeAt = row.Held, row.Slots, row.Fence, row.LastUs, row.FreeAtUs
		*o = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: max(row.UpdatedAtUs, row.NowUs), BlockedUntil: row.BlockedUntilUs}
		return err
	case store.Block:
		return s.SlotBlock(ctx, tx, db.SlotBlockParams{Policy: q.Policy, Key: q.Key, NowUs: q.Now, ForUs: op.ForUs, Commit: commit, LockTimeout: wait})
	case store.Unblock:
		return s.SlotUnblock(ctx, tx, db.SlotUnblockParams{Policy: q.Policy, Key: q.Key, Commit: commit, LockTimeout: wait})
	case store.Reset:
		return s.SlotReset(ctx, tx, db.SlotResetParams{Policy: q.Policy, Key: q.Key, Commit: commit, LockTimeout: wait})
	}
	return fmt.Errorf("pglimit: no statement of slots for kind %d", op.Kind)
}
