// Package keybound holds the number of keys that have a row under a policy to its MaxKeys.
//
// The statements of decisions insert the rows that they miss, and do not know the bound. So
// before a decision that may insert a row, a Store makes sure that the row is there. What it
// found out it remembers for up to five minutes. A missing row it inserts empty, with a permit from
// the policy's count in the database. Without a permit the key gets the policy's answer for
// the rest, and no statement that may insert is sent.
//
// The count is never less than the number of rows: a permit is counted before its row is
// inserted, the janitor takes a row off when it deletes it, and counts again only after all
// permits and all that processes remember have ended.
package keybound

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// The janitor waits for longer than the sum of these and the time that a statement takes
// before it believes what it counts.
const (
	longestKnown = 5 * time.Minute // a row is not looked for again; Present makes it last for longer
	permitLife   = 5 * time.Second // a permit may be used
)

const (
	fullFor  = time.Second // a policy without room is not asked again
	maxBlock = 100         // permits that a process takes at once, at most
	maxTries = 8           // to find a row that others insert and delete
)

// Clock returns the time in nanoseconds by two clocks: one that is never set, and the wall's.
type Clock func() (steady, wall int64)

// Store is a store.Store over another, in which the ops that have a Bound keep it. It is safe
// for concurrent use, unless the other is the store of a transaction.
type Store struct {
	store.Store
	tx bool
	*state
}

// state is what a process remembers. Losing it costs statements.
type state struct {
	clock Clock
	start int64        // of the steady clock
	ahead atomic.Int64 // of the wall's clock over that
	seed  maphash.Seed
	known known

	mu     sync.Mutex
	counts map[policy]*count
}

type policy struct {
	algorithm algorithm.Name
	name      string
}

type row struct {
	policy
	key string
}

// New returns a Store over inner.
func New(inner store.Store, clock Clock) *Store {
	steady, wall := clock()
	s := &state{clock: clock, start: steady, seed: maphash.MakeSeed(), counts: map[policy]*count{}}
	s.ahead.Store(wall - steady)
	return &Store{Store: inner, state: s}
}

// InTx returns s over the store of the caller's transaction. What that finds is remembered by
// none, because the transaction may be rolled back.
func (s *Store) InTx(inner store.Store) *Store { return &Store{Store: inner, tx: true, state: s.state} }

// Inner returns what s is over, if it is a Store: for ops without a Bound.
func Inner(s store.Store) store.Store {
	if b, ok := s.(*Store); ok {
		return b.Store
	}
	return s
}

// Do is store.Store's.
func (s *Store) Do(ctx context.Context, op *store.Op) error {
	switch {
	case op.Bound != nil:
		return s.one(ctx, op)
	case op.Kind == store.TakeAll || op.Kind == store.TakeAny:
		for _, g := range op.Groups {
			if g.Bound != nil {
				return s.all(ctx, op)
			}
		}
	}
	return s.Store.Do(ctx, op)
}

// one carries out an op for one key.
func (s *Store) one(ctx context.Context, op *store.Op) error {
	inserts := true
	switch op.Kind {
	case store.Take, store.Reserve, store.Charge, store.Block:
	case store.Get: // as the Take would be answered; in a transaction it must lock nothing
		if inserts = false; s.tx || op.Units > 0 && !op.Possible() {
			return s.Store.Do(ctx, op)
		}
	case store.Reset:
		if err := s.noteReset(ctx, &op.Query); err != nil {
			return err
		}
		return s.Store.Do(ctx, op)
	default:
		return s.Store.Do(ctx, op)
	}
	room, err := s.admit(ctx, &op.Query, inserts)
	switch {
	case err != nil:
		return err
	case room:
		return s.Store.Do(ctx, op)
	}
	return op.WithoutRow(func(rest *store.Op) error { return s.Store.Do(ctx, rest) })
}

// all carries out a TakeAll or a TakeAny. If one of its keys has no row and gets none, all of a
// TakeAll are denied. A TakeAny goes on without that key.
//
// A key that has none yet gets it only if the others are not denied anyhow, or their denial
// begins a block: a flood of new keys that another limit denies must not use up the rows.
func (s *Store) all(ctx context.Context, op *store.Op) error {
	full, missing := false, make([]*store.Group, 0, len(op.Groups))
	for _, g := range op.Groups {
		if g.Full = false; g.Bound == nil {
			continue
		}
		found, err := s.present(ctx, &g.Query)
		if err != nil {
			return err
		}
		if !found {
			missing = append(missing, g)
		}
	}
	if len(missing) > 0 && len(missing) < len(op.Groups) && op.Kind == store.TakeAll && !op.Once() {
		look := &store.Op{Kind: store.GetAll, Groups: op.Groups}
		if err := s.Store.Do(ctx, look); err != nil || store.Denied(op.Groups) {
			op.Rows = look.Rows
			return err
		}
	}
	for _, g := range missing {
		room, err := s.admit(ctx, &g.Query, true)
		if err != nil {
			return err
		}
		g.Full = !room
		full = full || !room
	}
	if full && op.Kind == store.TakeAll {
		op.Full = store.DeniedNow
		return nil
	}
	return s.Store.Do(ctx, op)
}

// admit makes sure that the key has a row, or could have one if it is not to be inserted. It
// reports whether there was room.
func (s *Store) admit(ctx context.Context, q *store.Query, insert bool) (room bool, err error) {
	for range maxTries {
		if found, err := s.present(ctx, q); err != nil || found {
			return found, err
		}
		if !insert {
			return s.room(ctx, q)
		}
		from, err := s.permit(ctx, q)
		if err != nil || from == nil {
			return false, err
		}
		began, op := s.now(), s.op(store.Insert, q)
		if err := s.Store.Do(ctx, op); err != nil {
			return false, err // the row may be there by now: the permit is used
		}
		if op.Allowed {
			s.learn(q, began, op.Lifetime)
			return true, nil
		}
		from.back(s.now()) // another has inserted it
	}
	return false, fmt.Errorf("%w: the row of a key of policy %s keeps changing; try again", store.ErrUnavailable, store.Quote(q.Policy))
}

// present reports whether the key surely has a row until after the statements that follow.
func (s *Store) present(ctx context.Context, q *store.Query) (found bool, err error) {
	began := s.now()
	if s.known.has(s.hash(q), began) {
		return true, nil
	}
	op := s.op(store.Present, q)
	if err = s.Store.Do(ctx, op); err != nil || op.Wait <= 0 {
		return false, err
	}
	s.learn(q, began, op.Wait)
	return true, nil
}

// op returns an op for a row that decides nothing. It need not wait for the disk: the count
// was written before it, and the decision waits.
func (s *Store) op(k store.Kind, q *store.Query) *store.Op {
	op := &store.Op{Kind: k, Query: *q}
	if !s.tx {
		op.Commit = store.Relaxed
	}
	return op
}

// learn remembers that the key has a row until us microseconds after began.
func (s *Store) learn(q *store.Query, began, us int64) {
	if !s.tx {
		s.known.put(s.hash(q), began, began+min(us, longestKnown.Microseconds())*1000)
	}
}

// noteReset makes the janitor wait before it counts the policy's rows: other processes know
// the row and may insert it again.
func (s *Store) noteReset(ctx context.Context, q *store.Query) error {
	s.known.drop(s.hash(q), s.now())
	return s.Store.Do(ctx, &store.Op{Kind: store.Permit, Query: countOf(q)})
}

// countOf returns the query of the policy's count.
func countOf(q *store.Query) store.Query {
	return store.Query{Algorithm: q.Algorithm, Policy: q.Policy, Key: store.RestKey, Bound: q.Bound, Now: q.Now}
}

func (s *state) hash(q *store.Query) uint64 {
	return maphash.Comparable(s.seed, row{policy{q.Algorithm, q.Policy}, q.Key})
}

// now returns the time since New in nanoseconds. After the machine was suspended, or its clock
// set, nothing that was remembered holds.
func (s *state) now() int64 {
	steady, wall := s.clock()
	if away := wall - steady - s.ahead.Load(); away > int64(time.Second) || away < -int64(time.Second) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ahead.Store(wall - steady)
		s.known.clear()
		clear(s.counts)
	}
	return steady - s.start
}
