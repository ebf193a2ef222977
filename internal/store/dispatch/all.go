package dispatch

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// send sends the request. Its statement waits so long for a row's lock.
func (d *Dispatcher) send(ctx context.Context, w *waiter, wait time.Duration) error {
	if w.op.Kind == store.TakeAll {
		return d.takeAll(ctx, w.op, wait)
	}
	w.op.LockWait = wait
	if w.key.reads {
		w.op.LockWait = 0
	}
	err := d.db.Do(ctx, w.op)
	if err == store.ErrReservationLocked && w.key.policy == "" { // it has the reservation's turn
		err = store.ErrLocked
	}
	return err
}

// takeAll sends a TakeAll. Its turn is that of its first hot key: a client cannot have more
// turns by more keys. Without a hot key it is that of all its keys together.
func (d *Dispatcher) takeAll(ctx context.Context, op *store.Op, wait time.Duration) error {
	first, end := wait <= Patience, time.Now().Add(wait)
	if !first && len(op.Groups) > 1 {
		d.awaitFree(ctx, op.Groups, end)
		wait = Patience
	}
	op.LockWait = wait
	err := d.db.Do(ctx, op)
	switch {
	case err != store.ErrLocked:
	case first && d.deniedAnyway(ctx, op):
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
func (d *Dispatcher) awaitFree(ctx context.Context, groups []*store.Group, end time.Time) {
	for ; time.Until(end) > 0; time.Sleep(min(probeEvery, max(0, time.Until(end)))) {
		if locked, err := d.anyLocked(ctx, groups); !locked || err != nil {
			return // the request itself tells an error
		}
	}
}

// anyLocked reports whether another transaction has locked a row of the groups.
func (d *Dispatcher) anyLocked(ctx context.Context, groups []*store.Group) (bool, error) {
	for len(groups) > 0 {
		var rows []*store.Row // of one algorithm
		for len(rows) < len(groups) && groups[len(rows)].Algorithm == groups[0].Algorithm {
			rows = append(rows, &store.Row{Query: &groups[len(rows)].Query})
		}
		if locked, err := d.db.Locked(ctx, rows); err != nil || slices.Contains(locked, true) {
			return true, err
		}
		groups = groups[len(rows):]
	}
	return false, nil
}

// keyOfAll returns the key for whose turn a TakeAll waits. It is not that of one key, whose
// row may be free while another group's is locked.
func keyOfAll(op *store.Op) key {
	groups := op.Groups
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
	return key{key: k.String(), reads: op.Reads()}
}

// deniedAnyway reads the keys without their locks, and reports whether that is enough to
// deny: a caller whose own limit denies does not wait for a row that all share. A denial
// that begins a block has to write it.
func (d *Dispatcher) deniedAnyway(ctx context.Context, op *store.Op) bool {
	if err := d.db.Do(ctx, &store.Op{Kind: store.GetAll, Groups: op.Groups}); err != nil || store.AllFit(op.Groups) {
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
