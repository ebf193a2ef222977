package lone

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// Do is store.Store's. A Settle's turn is that of the key, whose row it locks after the
// reservation. If another transaction has locked the reservation, it has a second turn of the
// reservation, since the key's row may be free for others.
func (s *Store) Do(ctx context.Context, op *store.Op) error {
	key := flowKey{waiting.SlotOf(&op.Query), op.Reads()}
	switch op.Kind {
	case store.TakeAll, store.GetAll:
		key.Slot = slotOf(op.Groups)
	case store.NextDue:
		key.Slot = waiting.Slot{}
	}
	err := s.do(ctx, op, key)
	if err == store.ErrReservationLocked {
		err = s.do(ctx, op, flowKey{Slot: waiting.Slot{Key: op.Reservation().Public()}})
	}
	return err
}

// send sends the request. Its statement waits so long for a row's lock.
func (c *call) send(ctx context.Context, wait time.Duration) error {
	if c.op.Kind == store.TakeAll {
		return c.Store.takeAll(ctx, c.op, wait)
	}
	c.op.LockWait = wait
	if c.key.reads {
		c.op.LockWait = 0
	}
	err := c.inner.Do(ctx, c.op)
	if err == store.ErrReservationLocked && c.key.Policy == "" { // it has the reservation's turn
		err = store.ErrLocked
	}
	return err
}

// takeAll sends a TakeAll. Its turn is that of its first hot key: a client cannot have more
// turns by more keys. Without a hot key it is that of all its keys together.
func (s *Store) takeAll(ctx context.Context, op *store.Op, wait time.Duration) error {
	first, end := wait <= waiting.Patience, time.Now().Add(wait)
	if !first && len(op.Groups) > 1 {
		s.awaitFree(ctx, op.Groups, end)
		wait = waiting.Patience
	}
	op.LockWait = wait
	err := s.inner.Do(ctx, op)
	switch {
	case err != store.ErrLocked:
	case first && s.deniedAnyway(ctx, op):
		return nil
	case !first: // awaitFree does not see a row that was inserted and not committed
		time.Sleep(min(time.Until(end), 5*probeEvery))
	}
	return err
}

// probeEvery is how often a request for several keys looks whether they are free.
const probeEvery = 20 * time.Millisecond

// awaitFree waits until no row of the groups is locked, or until end, and locks none
// meanwhile: a statement that waits for one of the rows would keep the others locked.
func (s *Store) awaitFree(ctx context.Context, groups []*store.Group, end time.Time) {
	for ; time.Until(end) > 0; time.Sleep(min(probeEvery, max(0, time.Until(end)))) {
		if locked, err := s.anyLocked(ctx, groups); !locked || err != nil {
			return // the request itself tells an error
		}
	}
}

// anyLocked reports whether another transaction has locked a row of the groups.
func (s *Store) anyLocked(ctx context.Context, groups []*store.Group) (bool, error) {
	for len(groups) > 0 {
		var rows []*store.Row // of one algorithm
		for len(rows) < len(groups) && groups[len(rows)].Algorithm == groups[0].Algorithm {
			rows = append(rows, &store.Row{Query: &groups[len(rows)].Query})
		}
		if locked, err := s.inner.Locked(ctx, rows); err != nil || slices.Contains(locked, true) {
			return true, err
		}
		groups = groups[len(rows):]
	}
	return false, nil
}

// slotOf returns the slot whose turns the groups take. It is not the slot of one key,
// whose row may be free while another group's is locked.
func slotOf(groups []*store.Group) waiting.Slot {
	var hot *store.Group
	for _, g := range groups {
		if g.Hot && (hot == nil || g.Index < hot.Index) {
			hot = g
		}
	}
	if hot != nil {
		groups = []*store.Group{hot}
	}
	var k strings.Builder
	for _, g := range groups {
		for _, part := range []string{string(g.Algorithm), g.Policy, g.Key} {
			k.WriteString(part)
			k.WriteByte(0) // is in none of them
		}
	}
	return waiting.Slot{Key: k.String()}
}

// deniedAnyway reads the keys without their locks, and reports whether that is enough to
// deny: a caller whose own limit denies does not wait for a row that all share. A denial
// that begins a block has to write it.
func (s *Store) deniedAnyway(ctx context.Context, op *store.Op) bool {
	if err := s.inner.Do(ctx, &store.Op{Kind: store.GetAll, Groups: op.Groups}); err != nil || store.AllFit(op.Groups) {
		return false
	}
	for _, g := range op.Groups {
		if !g.Fits() && !g.Outcome.Blocked && g.BlockFor > 0 {
			return false
		}
	}
	op.Allowed = false
	return true
}
