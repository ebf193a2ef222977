package postgres

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// statements returns the ops of each statement of a Pipeline, as their indexes. The ops of a key
// follow each other. Its Releases of slots are sent first: all are concurrent, so any order is
// right, and this one grants most. Several of them share a statement, and so do equal Acquires.
func statements(ops []*store.Op) (all [][]int) {
	for begin, end := 0, 0; begin < len(ops); begin = end {
		for first := &ops[begin].Query; end < len(ops) && ops[end].Policy == first.Policy && ops[end].Key == first.Key; {
			end++
		}
		ofKey := len(all)
		for _, release := range []bool{true, false} {
			for i := begin; i < end; i++ {
				if op := ops[i]; (op.Kind == store.Release) == release {
					j := slices.IndexFunc(all[ofKey:], func(with []int) bool {
						return ops[with[0]].Kind == op.Kind && !slices.ContainsFunc(with, func(k int) bool { return !shareSlots(ops[k], op) })
					})
					if j < 0 {
						all = append(all, []int{i})
					} else {
						all[ofKey+j] = append(all[ofKey+j], i)
					}
				}
			}
		}
	}
	return all
}

// shareSlots reports whether a statement can carry out two ops of one kind and key: Releases of
// different slots, or equal Acquires.
func shareSlots(a, b *store.Op) bool {
	if a.Now != nil || b.Now != nil || a.Algorithm != b.Algorithm {
		return false
	}
	switch a.Kind {
	case store.Release:
		return a.ID != b.ID
	case store.Acquire:
		g, h := a.Slot, b.Slot
		return g.Cost == h.Cost && g.TTL == h.TTL && g.Limit == h.Limit && g.Period == h.Period
	}
	return false
}

// slotsTogether carries out those of ops with the indexes in one statement, and sets their errors.
// If not all slots of Releases are held, each has to be sent alone.
func slotsTogether(ctx context.Context, tx db.DBTX, ops []*store.Op, indexes []int, errs []error) {
	ids := make([]string, len(indexes))
	for n, i := range indexes {
		ids[n] = ops[i].ID
	}
	first := ops[indexes[0]]
	q, h, s := &first.Query, first.Slot, statement.Queries
	commit, wait := string(q.Commit), statement.WaitText(q.LockWait)
	if first.Kind == store.Release {
		row, err := s.SlotReleaseMany(ctx, tx, db.SlotReleaseManyParams{Policy: q.Policy, Key: q.Key, Ids: ids, NowUs: q.Now, LockTimeout: wait, Commit: commit})
		if errors.Is(err, pgx.ErrNoRows) {
			err = store.ErrAlone
		}
		for _, i := range indexes {
			op, h := ops[i], ops[i].Slot
			h.Held, h.Limit, h.Slots, h.EmptyAt = row.Held, row.LimitUnits, row.Slots, row.LastUs
			op.Outcome, errs[i] = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: row.UpdatedAtUs}, err
		}
		return
	}
	row, err := s.SlotAcquireMany(ctx, tx, db.SlotAcquireManyParams{
		Policy: q.Policy, Key: q.Key, Ids: ids, Cost: h.Cost, NowUs: q.Now, TtlUs: h.TTL, LimitUnits: h.Limit, PeriodUs: h.Period, LockTimeout: wait, Commit: commit,
	})
	for n, i := range indexes {
		op, h, after := ops[i], ops[i].Slot, max(0, row.Granted-int64(n)-1) // slots taken after this one
		h.Granted, h.Held, h.Slots, h.Fence = int64(n) < row.Granted, row.Held-after*h.Cost, row.Slots-after, row.Fence-after
		h.EmptyAt, h.FreeAt, h.EndsAt = row.LastUs, row.FreeAtUs, row.UpdatedAtUs+h.TTL
		if h.Granted {
			h.FreeAt = 0
		}
		op.Outcome, errs[i] = store.Outcome{Decided: true, Now: row.NowUs, UpdatedAt: row.UpdatedAtUs, BlockedUntil: row.BlockedUntilUs}, err
	}
}
