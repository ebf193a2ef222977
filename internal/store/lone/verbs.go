package lone

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// sender sends a request to inner. Its statement waits so long for a row's lock.
type sender[T any] = func(ctx context.Context, inner store.Store, lockWait time.Duration) (T, error)

// turn is do for a method with a result. late is called with a result that comes after
// the caller has left; it may be nil.
func turn[T any](ctx context.Context, s *Store, r request, late func(T), send sender[T]) (T, error) {
	var v T
	r.send = func(ctx context.Context, inner store.Store, wait time.Duration) (w verdict, err error) {
		v, err = send(ctx, inner, wait)
		if o, ok := any(&v).(*store.Outcome); ok && o.Decided && err == nil {
			w = verdict{granted: o.Granted > 0, denied: o.Granted == 0}
		}
		return w, err
	}
	if late != nil {
		r.late = func() { late(v) }
	}
	if err := s.do(ctx, r); err != nil { // send may still set v
		var none T
		return none, err
	}
	return v, nil
}

// writes returns the request of a method that locks q's row by one statement.
func writes(q *store.Query) request {
	return request{key: flowKey{Slot: waiting.SlotOf(q)}, shares: true, commit: q.Commit, rows: &q.Rows}
}

// write is turn for a method that locks q's row by one statement.
func write[T any](ctx context.Context, s *Store, q *store.Query, send func(context.Context, store.Store) (T, error)) (T, error) {
	return turn(ctx, s, writes(q), nil, locking(q, send))
}

// locking returns send with q's LockWait.
func locking[T any](q *store.Query, send func(context.Context, store.Store) (T, error)) sender[T] {
	return func(ctx context.Context, inner store.Store, wait time.Duration) (T, error) {
		q.LockWait = wait
		return send(ctx, inner)
	}
}

// read is turn for a method that locks nothing.
func read[T any](ctx context.Context, s *Store, q *store.Query, shares bool, send func(context.Context, store.Store) (T, error)) (T, error) {
	return turn(ctx, s, request{key: flowKey{waiting.SlotOf(q), true}, shares: shares, rows: &q.Rows}, nil,
		func(ctx context.Context, inner store.Store, _ time.Duration) (T, error) { return send(ctx, inner) })
}

// change is write for a method that returns only an error.
func change(ctx context.Context, s *Store, q *store.Query, send func(context.Context, store.Store) error) error {
	_, err := write(ctx, s, q, nothing(send))
	return err
}

// nothing returns send with an empty result.
func nothing(send func(context.Context, store.Store) error) func(context.Context, store.Store) (struct{}, error) {
	return func(ctx context.Context, inner store.Store) (struct{}, error) { return struct{}{}, send(ctx, inner) }
}

// Take is store.Store's.
func (s *Store) Take(ctx context.Context, q *store.Query) (store.Outcome, error) {
	late := func(o store.Outcome) {
		if q.Late != nil && o.Granted > 0 {
			q.Late(o)
		}
	}
	r := writes(q)
	r.known = q.Known
	return turn(ctx, s, r, late, locking(q, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Take(ctx, q) }))
}

// Charge is store.Store's.
func (s *Store) Charge(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return write(ctx, s, q, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Charge(ctx, q) })
}

// Refund is store.Store's.
func (s *Store) Refund(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return write(ctx, s, q, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Refund(ctx, q) })
}

// Undo is store.Store's.
func (s *Store) Undo(ctx context.Context, q *store.Query, g algorithm.Grant) (store.Outcome, error) {
	return write(ctx, s, q, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Undo(ctx, q, g) })
}

// Reserve is store.Store's. It is one statement, unless the request was admitted before.
func (s *Store) Reserve(ctx context.Context, q *store.Query, a *store.Admission) (store.Outcome, error) {
	r := writes(q)
	r.known, r.shares = q.Known, q.Possible()
	return turn(ctx, s, r, nil, locking(q, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Reserve(ctx, q, a) }))
}

// Block is store.Store's.
func (s *Store) Block(ctx context.Context, q *store.Query, forUs int64) error {
	return change(ctx, s, q, func(ctx context.Context, inner store.Store) error { return inner.Block(ctx, q, forUs) })
}

// Unblock is store.Store's.
func (s *Store) Unblock(ctx context.Context, q *store.Query, until int64) error {
	return change(ctx, s, q, func(ctx context.Context, inner store.Store) error { return inner.Unblock(ctx, q, until) })
}

// Reset is store.Store's. It is two statements, and locks reservations in any order.
func (s *Store) Reset(ctx context.Context, q *store.Query) error {
	r := writes(q)
	r.shares = false
	_, err := turn(ctx, s, r, nil, locking(q, nothing(func(ctx context.Context, inner store.Store) error { return inner.Reset(ctx, q) })))
	return err
}

// Leave is store.Store's.
func (s *Store) Leave(ctx context.Context, q *store.Query, ticket int64) (bool, error) {
	return write(ctx, s, q, func(ctx context.Context, inner store.Store) (bool, error) { return inner.Leave(ctx, q, ticket) })
}

// Get is store.Store's.
func (s *Store) Get(ctx context.Context, q *store.Query) (store.Outcome, error) {
	return read(ctx, s, q, true, func(ctx context.Context, inner store.Store) (store.Outcome, error) { return inner.Get(ctx, q) })
}

// Usage is store.Store's.
func (s *Store) Usage(ctx context.Context, q *store.Query) (store.Usage, error) {
	return read(ctx, s, q, true, func(ctx context.Context, inner store.Store) (store.Usage, error) { return inner.Usage(ctx, q) })
}

// Due is store.Store's.
func (s *Store) Due(ctx context.Context, q *store.Query) ([]string, error) {
	return read(ctx, s, q, false, func(ctx context.Context, inner store.Store) ([]string, error) { return inner.Due(ctx, q) })
}

// NextDue is store.Store's.
func (s *Store) NextDue(ctx context.Context) (int64, error) {
	return turn(ctx, s, request{key: flowKey{reads: true}}, nil, func(ctx context.Context, inner store.Store, _ time.Duration) (int64, error) {
		return inner.NextDue(ctx)
	})
}

// Settle is store.Store's. Its turn is that of the key, whose row it locks after the
// reservation. If another transaction has locked the reservation, it has a second turn of the
// reservation, since the key's row may be free for others.
func (s *Store) Settle(ctx context.Context, e *store.Ending) (store.Ended, error) {
	send := func(ctx context.Context, inner store.Store, wait time.Duration) (store.Ended, error) {
		e.LockWait = wait
		return inner.Settle(ctx, e)
	}
	ofKey := request{key: flowKey{Slot: waiting.Slot{Algorithm: e.Algorithm, Policy: e.Policy, Key: e.Key}}, shares: true, commit: e.Commit, rows: &e.Rows}
	ended, err := turn(ctx, s, ofKey, nil, send)
	if err != store.ErrReservationLocked {
		return ended, err
	}
	ofReservation := request{key: flowKey{Slot: waiting.Slot{Key: e.Public()}}}
	return turn(ctx, s, ofReservation, nil, func(ctx context.Context, inner store.Store, wait time.Duration) (store.Ended, error) {
		ended, err := send(ctx, inner, wait)
		if err == store.ErrReservationLocked {
			err = store.ErrLocked
		}
		return ended, err
	})
}

// TakeAll is store.Store's. Its turn is that of its first hot key: a client cannot have more
// turns by more keys. Without a hot key it is that of all its keys together. Known and Late are
// those of the first joint.
func (s *Store) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (bool, error) {
	first := &joints[0].Query
	late := func(allowed bool) {
		if first.Late != nil && allowed {
			first.Late(joints[0].Outcome)
		}
	}
	return turn(ctx, s, request{key: flowKey{flowOf(joints), !possible}, known: first.Known}, late, func(ctx context.Context, _ store.Store, wait time.Duration) (bool, error) {
		first, end := wait <= waiting.Patience, time.Now().Add(wait)
		if !first && len(joints) > 1 {
			s.awaitFree(ctx, joints, end)
			wait = waiting.Patience
		}
		for _, j := range joints {
			j.LockWait = wait
		}
		allowed, err := s.inner.TakeAll(ctx, joints, possible)
		switch {
		case err != store.ErrLocked:
		case first && s.deniedAnyway(ctx, joints):
			return false, nil
		case !first: // awaitFree does not see a row that was inserted and not committed
			time.Sleep(min(time.Until(end), 5*probeEvery))
		}
		return allowed, err
	})
}

// probeEvery is how often a request for several keys looks whether they are free.
const probeEvery = 20 * time.Millisecond

// awaitFree waits until no row of the joints is locked, or until end, and locks none
// meanwhile: a statement that waits for one of the rows would keep the others locked.
func (s *Store) awaitFree(ctx context.Context, joints []*store.Joint, end time.Time) {
	for ; time.Until(end) > 0; time.Sleep(min(probeEvery, max(0, time.Until(end)))) {
		if locked, err := s.anyLocked(ctx, joints); !locked || err != nil {
			return // the request itself tells an error
		}
	}
}

// anyLocked reports whether another transaction has locked a row of the joints.
func (s *Store) anyLocked(ctx context.Context, joints []*store.Joint) (bool, error) {
	for len(joints) > 0 {
		var rows []*store.Row // of one algorithm
		for len(rows) < len(joints) && joints[len(rows)].Algorithm == joints[0].Algorithm {
			rows = append(rows, &store.Row{Query: &joints[len(rows)].Query})
		}
		if locked, err := s.inner.Locked(ctx, rows); err != nil || slices.Contains(locked, true) {
			return true, err
		}
		joints = joints[len(rows):]
	}
	return false, nil
}

// flowOf returns the slot whose turns the joints take. It is not the slot of one key,
// whose row may be free while another joint's is locked.
func flowOf(joints []*store.Joint) waiting.Slot {
	var hot *store.Joint
	for _, j := range joints {
		if j.Hot && (hot == nil || j.Index < hot.Index) {
			hot = j
		}
	}
	if hot != nil {
		joints = []*store.Joint{hot}
	}
	var k strings.Builder
	for _, j := range joints {
		for _, part := range []string{string(j.Algorithm), j.Policy, j.Key} {
			k.WriteString(part)
			k.WriteByte(0) // is in none of them
		}
	}
	return waiting.Slot{Key: k.String()}
}

// deniedAnyway reads the keys without their locks, and reports whether that is enough to
// deny: a caller whose own limit denies does not wait for a row that all share. A denial
// that begins a block has to write it.
func (s *Store) deniedAnyway(ctx context.Context, joints []*store.Joint) bool {
	if _, err := s.inner.TakeAll(ctx, joints, false); err != nil || store.AllFit(joints) {
		return false
	}
	for _, j := range joints {
		if !j.Fits() && !j.Outcome.Blocked && j.BlockFor > 0 {
			return false
		}
	}
	return true
}
