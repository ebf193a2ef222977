package memory

import (
	"slices"
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// held has the slots of a key. It is a State only to be kept in an entry.
type held struct {
	algorithm.State
	algorithm.Slots
}

// Seen returns nothing: slots have an outcome of their own.
func (*held) Seen(*algorithm.Rules, int64, int64, float64, float64) algorithm.View { return nil }

// IdleAt returns the time from which the key decides as a missing one.
func (s *held) IdleAt(*algorithm.Rules) int64 { return s.EmptyAt() }

// slots carries out an op about slots.
func (m *Store) slots(op *store.Op) error {
	found := false
	_, err := m.with(&op.Query, op.Kind == store.Acquire || op.Kind == store.Block, func(e *entry, now, _ int64) float64 {
		found = e.state.(*held).do(op, now)
		return 0
	})
	if err == nil && !found && (op.Kind == store.Renew || op.Kind == store.Release) {
		err = store.NoSlot(op)
	}
	return err
}

// do carries out an op about the slots of one key. It reports whether it found the slot.
func (s *held) do(op *store.Op, now int64) (found bool) {
	h, at := op.Slot, max(s.UpdatedAt, now)
	switch op.Kind {
	case store.Acquire:
		h.EndsAt, s.Period = at+h.TTL, h.Period
		h.Granted = s.Acquire(at, h.Limit, h.Cost, strings.Clone(op.ID), h.EndsAt)
		s.saw(op, now, at)
		return h.Granted
	case store.Renew:
		ttl := h.TTL
		if ttl == 0 {
			ttl = s.Period
		}
		h.EndsAt, found = s.Renew(at, strings.Clone(op.ID), at+ttl)
		s.saw(op, now, at)
	case store.Release:
		found = s.Release(at, op.ID)
		s.saw(op, now, at)
	case store.GetSlots:
		seen := held{Slots: s.Slots}
		seen.IDs, seen.Costs, seen.Ends = slices.Clone(s.IDs), slices.Clone(s.Costs), slices.Clone(s.Ends)
		seen.Slots.End(at)
		seen.saw(op, now, at)
	case store.Block:
		s.BlockedUntil = max(s.BlockedUntil, at+op.ForUs)
	case store.Unblock:
		s.BlockedUntil = 0
	case store.Reset: // the clock and the fence stay
		s.IDs, s.Costs, s.Ends, s.BlockedUntil = nil, nil, nil, 0
	}
	return found
}

// saw sets the outcome of an op.
func (s *held) saw(op *store.Op, now, at int64) {
	h := op.Slot
	op.Outcome = store.Outcome{Decided: true, Now: now, UpdatedAt: at, BlockedUntil: s.BlockedUntil}
	h.Held, h.Slots, h.Fence, h.EmptyAt = s.Held(), int64(len(s.IDs)), s.Fence, s.LastEnd()
	if !h.Granted {
		h.FreeAt = s.FreeAt(h.Limit, h.Cost)
	}
}
