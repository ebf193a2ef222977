package memory

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/pglimit/pglimit/internal/store"
)

// Txn is a transaction on a Store, as PostgreSQL's at read committed: a store.Store whose
// changes others see after Commit. It locks the keys that it changes, until its end, and
// works on copies of them. So a rollback has nothing to restore. Like a transaction of
// PostgreSQL, it is for one goroutine at a time.
//
// Begin on a Txn returns one for a savepoint.
type Txn struct {
	*txn
	savepoint *savepoint // nil: of the whole transaction
	ended     bool
}

// txn is what a transaction and its savepoints share.
type txn struct {
	base    *Store
	own     *Store // what it has locked, as it has changed it
	locks   map[entryKey]*rowLock
	claimed map[entryKey]bool // has a place in base, claimed for a new key
	stored  map[entryKey]bool // had one when it was locked
	saved   []*savepoint      // that have not ended
	closed  error             // of calls after the end
	over    bool
	failed  bool // until a rollback
	broken  bool // it stays failed after a rollback to a savepoint
	waits   *rowLock
}

// savepoint is what a transaction had locked at a savepoint, and how.
type savepoint struct {
	own  *Store
	keys map[entryKey]bool
}

// ErrFailed is the error of a Commit that has rolled back, since a method has failed.
var ErrFailed = errors.New("pglimit: the transaction has failed")

// errFailed is the error of a method after another one has failed, as PostgreSQL's.
var errFailed = errors.New("ERROR: current transaction is aborted, commands ignored until end of transaction block (SQLSTATE 25P02)")

// BeginTx begins a transaction. closed is the driver's error for calls after the end.
func (m *Store) BeginTx(closed error) *Txn {
	return &Txn{txn: &txn{base: m, own: unbounded(), locks: map[entryKey]*rowLock{}, claimed: map[entryKey]bool{}, stored: map[entryKey]bool{}, closed: closed}}
}

// unbounded returns an empty Store for the keys of a transaction, which have their places
// in base.
func unbounded() *Store { return NewBounded(math.MaxInt / 2) } // so that places can be added

// usable returns an error after the end, and after a failure.
func (t *Txn) usable() error {
	switch {
	case t.Over():
		return fmt.Errorf("%w: %w", store.ErrUnavailable, t.closed)
	case t.failed:
		return fmt.Errorf("%w: %w", store.ErrUnavailable, errFailed)
	}
	return nil
}

// Failed reports whether a method has failed, so that a Commit would roll back.
func (t *Txn) Failed() bool { return t.failed }

// Over reports whether the transaction or the savepoint has ended. A savepoint ends with
// those around it.
func (t *Txn) Over() bool {
	if t.ended || t.over {
		return true
	}
	return t.savepoint != nil && t.at() < 0
}

// at returns the index of the savepoint among those that have not ended, or -1.
func (t *Txn) at() int {
	for i, s := range t.saved {
		if s == t.savepoint {
			return i
		}
	}
	return -1
}

// Begin sets a savepoint.
func (t *Txn) Begin() (*Txn, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	s := &savepoint{own: unbounded(), keys: map[entryKey]bool{}}
	for k := range t.locks {
		s.own.put(t.own, k)
		s.keys[k] = true
	}
	t.saved = append(t.saved, s)
	return &Txn{txn: t.txn, savepoint: s}, nil
}

// Commit makes the changes visible to others; of a savepoint, to the transaction around
// it. After a failure it rolls back and returns ErrFailed.
func (t *Txn) Commit() error {
	switch {
	case t.Over():
		return t.closed
	case t.failed:
		_ = t.Rollback()
		return ErrFailed
	}
	t.ended = true
	if t.savepoint != nil {
		t.saved = t.saved[:t.at()]
		return nil
	}
	t.end(true)
	return nil
}

// Rollback undoes all changes, or those since the savepoint, and releases their locks.
func (t *Txn) Rollback() error {
	if t.Over() {
		return t.closed
	}
	t.ended = true
	if t.savepoint == nil {
		t.end(false)
		return nil
	}
	t.saved = t.saved[:t.at()]
	t.own, t.failed = t.savepoint.own, t.broken
	t.base.reservations.mu.Lock()
	defer t.base.reservations.mu.Unlock()
	for k := range t.locks {
		if !t.savepoint.keys[k] {
			t.unlock(k, false)
		}
	}
	return nil
}

// end ends the transaction.
func (t *txn) end(commit bool) {
	t.over = true
	m := t.base
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	var mine [len(m.shards)]bool
	for k := range t.locks {
		mine[m.shardOf(&k)] = true
	}
	for i := range m.shards { // all at once, so that an AllowAll sees all changes or none
		if mine[i] {
			m.shards[i].mu.Lock()
			defer m.shards[i].mu.Unlock()
		}
	}
	for k := range t.locks {
		t.release(k, commit)
	}
}

// unlock is release for one key. The reservations are locked.
func (t *txn) unlock(k entryKey, commit bool) {
	s := &t.base.shards[t.base.shardOf(&k)]
	s.mu.Lock()
	defer s.mu.Unlock()
	t.release(k, commit)
}

// release ends the lock of a key. With commit its changes become those of base, of which
// the key's shard and the reservations are locked.
func (t *txn) release(k entryKey, commit bool) {
	m := t.base
	s := &m.shards[m.shardOf(&k)]
	if t.claimed[k] {
		m.free.Add(1)
	}
	if commit {
		before := len(s.entries)
		m.put(t.own, k)
		m.free.Add(int64(before - len(s.entries))) // may be below zero, if it was evicted meanwhile
	}
	l := t.locks[k]
	delete(t.claimed, k)
	delete(t.stored, k)
	delete(t.locks, k)
	delete(s.held, k)
	close(l.free)
}

// put replaces what m has of a key, its row and its reservations, by a copy of what from
// has. Those of both are locked, or used by one goroutine only.
func (m *Store) put(from *Store, k entryKey) {
	s := &m.shards[m.shardOf(&k)]
	if e := s.entries[k]; e != nil {
		s.remove(e)
	}
	for _, h := range m.reservations.byID {
		if h.entryKey() == k {
			m.reservations.remove(h)
		}
	}
	old := from.shards[from.shardOf(&k)].entries[k]
	var e *entry
	if old != nil {
		e = &entry{row: old.row, key: k, blank: old.blank, open: old.open, reservedUntil: old.reservedUntil}
		e.state = old.state.Clone()
		s.add(e)
	}
	for _, h := range from.reservations.byID {
		if h.entryKey() != k {
			continue
		}
		c := *h
		if c.pins != nil && c.pins == old {
			c.pins = e
		} else {
			c.pins = nil // an entry that was forgotten since
		}
		m.reservations.add(&c)
	}
}

// lock locks a key, and claims a place for it if it is new and will be kept. After an
// error that is not a store.ErrFull the transaction has failed.
func (t *Txn) lock(ctx context.Context, k entryKey, keep bool, now *int64) error {
	if err := t.usable(); err != nil {
		return err
	}
	for t.locks[k] == nil {
		held := t.tryLock(k)
		if held == nil {
			break
		}
		if err := t.await(ctx, held); err != nil {
			t.failed, t.broken = true, ctx.Err() != nil
			return err
		}
	}
	if keep && !t.claimed[k] && !t.stored[k] {
		if err := t.base.claim(clock(now)); err != nil {
			return err
		}
		t.claimed[k] = true
	}
	return nil
}

// tryLock locks a key and copies what is known of it, or returns another transaction's
// lock.
func (t *txn) tryLock(k entryKey) (held *rowLock) {
	m := t.base
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	s := &m.shards[m.shardOf(&k)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if held = s.held[k]; held != nil {
		return held
	}
	if s.held == nil {
		s.held = map[entryKey]*rowLock{}
	}
	k.key = strings.Clone(k.key) // it may be a part of a large text
	l := &rowLock{by: t, free: make(chan struct{})}
	s.held[k], t.locks[k], t.stored[k] = l, l, s.entries[k] != nil
	t.own.put(m, k)
	return nil
}

// exists reports whether the committed state has anything of a key.
func (t *txn) exists(k entryKey) bool {
	m := t.base
	m.reservations.mu.Lock()
	defer m.reservations.mu.Unlock()
	s := &m.shards[m.shardOf(&k)]
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries[k] != nil || len(m.reservations.open[k]) > 0
}

// upsert returns the store to decide q in, which has locked the key.
func (t *Txn) upsert(ctx context.Context, q *store.Query) (*Store, error) {
	err := t.lock(ctx, entryKey{q.Algorithm, q.Policy, q.Key}, true, q.Now)
	return t.own, err
}

// update is upsert for a change that does nothing to a missing row. Then it locks nothing.
func (t *Txn) update(ctx context.Context, q *store.Query) (*Store, error) {
	k := entryKey{q.Algorithm, q.Policy, q.Key}
	if err := t.usable(); err != nil {
		return nil, err
	}
	if t.locks[k] == nil && !t.exists(k) {
		return t.own, nil // has nothing of it either
	}
	return t.own, t.lock(ctx, k, false, q.Now)
}

// reading returns the store to read a key from: what this transaction made of it, or what
// others have committed.
func (t *Txn) reading(q *store.Query) (*Store, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	if t.locks[entryKey{q.Algorithm, q.Policy, q.Key}] != nil {
		return t.own, nil
	}
	return t.base, nil
}
