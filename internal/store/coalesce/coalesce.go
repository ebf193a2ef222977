// Package coalesce lets concurrent requests share statements. While one statement is
// in flight, new requests queue and are sent together in the next one. Results are the
// same as if each request had been sent alone, in order of arrival.
package coalesce

import (
	"context"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/waiting"
)

// Options sets up a Store. There are no defaults.
type Options struct {
	Rows       int           // keys in one statement, at most
	Statements int           // in flight at once for each algorithm and Commit, at most
	Now        func() *int64 // the caller's clock for a statement; if it returns nil, the store's
	// Obeys: a statement ends with its context. Then a caller that cannot leave sends its
	// own statement if nothing is in flight, which costs no goroutine.
	Obeys bool
}

// Database is what sends the shared statements.
type Database interface {
	store.Store
	// TakeMany decides rows of different keys, in lock order, with one algorithm and one
	// Commit. now is the caller's clock, nil for the database's. After an error, rows whose
	// Outcome is Decided were still decided. The error is store.ErrLocked if a row was locked
	// for longer than the rows' LockWait, and a *store.RowError if a value in a row failed the
	// statement.
	TakeMany(ctx context.Context, rows []*store.Row, now *int64) error
	// Locked marks the rows that other transactions have locked.
	Locked(ctx context.Context, rows []*store.Row) (locked []bool, err error)
}

// Store is a store.Store that coalesces each Op that Merges. All others
// are the inner store's. If no statement is in flight, a request is sent
// immediately; requests that arrive meanwhile share the next. So no request waits for
// others to arrive, and an idle Store has no goroutine. It is safe for concurrent use.
type Store struct {
	store.Store
	database Database
	options  Options
	room     *waiting.Room
	lane     *waiting.Lane
	lines    [2 * len(algorithm.Names)]line
}

// New returns a Store over inner. The callers of shared statements wait in room, and in
// lane if their row is locked.
func New(inner store.Store, d Database, room *waiting.Room, lane *waiting.Lane, o Options) *Store {
	s := &Store{Store: inner, database: d, options: o, room: room, lane: lane}
	for i := range s.lines {
		l := &s.lines[i]
		l.Store, l.heads, l.watch = s, map[place]*row{}, waiting.NewWatch(room, &l.mu)
		l.idle.L = &l.mu
	}
	return s
}

// Close makes later Takes return ErrClosed.
func (s *Store) Close() {
	for i := range s.lines {
		l := &s.lines[i]
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
	}
}

// AwaitIdle waits until no request waits or is in flight, except in the lane. It reports
// whether that was so before.
func (s *Store) AwaitIdle() (was bool) {
	was = true
	for i := range s.lines {
		l := &s.lines[i]
		l.mu.Lock()
		for l.inFlight > 0 {
			was = false
			l.idle.Wait()
		}
		l.mu.Unlock()
	}
	return was
}

// Do is store.Store's. If ctx or the room's timeout ends while op waits in the queue, it is
// not sent; if it is in flight, it may be counted.
func (s *Store) Do(ctx context.Context, op *store.Op) error {
	if !op.Merges {
		return s.Store.Do(ctx, op)
	}
	if ctx.Err() != nil {
		return store.EndedContext(ctx)
	}
	return s.line(&op.Query).take(ctx, op)
}
