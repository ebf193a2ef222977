package memory

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/internal/store"
)

// rowLock is a transaction's lock of a key, as PostgreSQL's lock of its row.
type rowLock struct {
	by   *txn
	free chan struct{} // closed when it ends
}

// await waits for the end of a lock. If ctx ends first, it returns a store.ErrLocked.
func (l *rowLock) await(ctx context.Context) error {
	select {
	case <-l.free:
		return nil
	case <-ctx.Done():
		return store.ErrLocked
	}
}

// ended reports whether the lock has ended.
func (l *rowLock) ended() bool {
	select {
	case <-l.free:
		return true
	default:
		return false
	}
}

// lockReservations locks the reservations while no transaction has locked the key. Until
// they are unlocked none can. If ctx ends first, it returns a store.ErrLocked.
func (m *Store) lockReservations(ctx context.Context, k entryKey) error {
	for {
		m.reservations.mu.Lock()
		s := &m.shards[m.shardOf(&k)]
		s.mu.Lock()
		held := s.held[k]
		s.mu.Unlock()
		if held == nil {
			return nil
		}
		m.reservations.mu.Unlock()
		if err := held.await(ctx); err != nil {
			return err
		}
	}
}

// deadlock is the error that PostgreSQL returns for a deadlock.
type deadlock struct{}

func (deadlock) Error() string    { return "ERROR: deadlock detected (SQLSTATE 40P01)" }
func (deadlock) SQLState() string { return "40P01" }

// await waits for the end of another transaction's lock. If that one waits for this one,
// directly or through others, the error is an ErrRetryTx.
func (t *txn) await(ctx context.Context, l *rowLock) error {
	t.base.waits.Lock()
	for next := l; next != nil && !next.ended(); next = next.by.waits {
		if next.by == t {
			t.base.waits.Unlock()
			return fmt.Errorf("%w: %w", store.ErrRetryTx, deadlock{})
		}
	}
	t.waits = l
	t.base.waits.Unlock()
	err := l.await(ctx)
	t.base.waits.Lock()
	t.waits = nil
	t.base.waits.Unlock()
	return err
}
