package contest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	// holdMost is the longest time that a row stays locked. It is well below the timeout
	// of requests.
	holdMost = 5 * time.Second
	// holdAnswers is the number of requests for other keys that must be answered before
	// a row is unlocked.
	holdAnswers = 10
)

// heldCallers returns how many workers may request the key of the locked row at once: a
// quarter, and never all, because they wait and other keys need workers too.
func heldCallers(workers int) int { return min(workers/2, max(1, workers/4)) }

// holding is the state of the row that a transaction has locked.
type holding struct {
	most    time.Duration
	callers chan struct{} // one for each worker that requests the key of the locked row
	now     atomic.Pointer[heldRow]
	over    atomic.Bool // no row will be locked any more
}

// heldRow is a locked row. It counts the answers for other keys meanwhile.
type heldRow struct {
	request
	holding *holding
	mu      sync.Mutex
	called  bool // a worker requests its key, or no more may
	others  int64
	enough  chan struct{}
}

// enter lets a worker request the key of the locked row, unless too many do.
func (h *holding) enter() (leave func(), ok bool) {
	select {
	case h.callers <- struct{}{}:
		return func() { <-h.callers }, true
	default:
		return nil, false
	}
}

// begin records that a request for s begins. It returns the row that is locked then, or
// nil.
func (h *holding) begin(s subject) *heldRow {
	row := h.now.Load()
	if row != nil && row.subject == s {
		row.see(func() { row.called = true })
	}
	return row
}

// answered records the answer to a request for s that began while the row was locked.
func (r *heldRow) answered(s subject) {
	if r != nil && r.subject.kind != s.kind && r.holding.now.Load() == r {
		r.see(func() { r.others++ })
	}
}

// see changes the counts. It unlocks the row when they are sufficient.
func (r *heldRow) see(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.called && r.others >= holdAnswers
	change()
	if !before && r.called && r.others >= holdAnswers {
		close(r.enough)
	}
}

// seen returns how many requests for other keys were answered.
func (r *heldRow) seen() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others
}

// hold locks rows in transactions, one after the other, until until; at least one. It
// keeps each locked until requests for its key have begun and requests for others were
// answered.
func (c *Contest) hold(ctx context.Context, until time.Time) error {
	defer c.holding.over.Store(true)
	books := tallies{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tallies.add(books)
	}()
	failures := 0
	for done := false; ctx.Err() == nil && (!done || time.Now().Before(until)); {
		s := c.groups.of(heldKind)
		t := books.of(s)
		t.requests++
		t.asked++
		commit := rand.IntN(2) == 0
		row := &heldRow{request: s, holding: &c.holding, enough: make(chan struct{})}
		stalled := false
		var r limiter.Result
		err := c.holder.InTx(ctx, commit, func(tx limiter.Decider) (err error) {
			if r, err = tx.AllowN(ctx, s.policy, s.key, 1); err == nil {
				stalled = c.whileHeld(ctx, row)
			}
			return err
		})
		c.count(row, stalled, err == nil)
		switch fateOf(err) {
		case answered:
			done, failures = true, 0
		case undone:
			continue
		case hopeless:
			return err
		default:
			t.unknown++
			if failures++; failures >= maxFailures {
				return fmt.Errorf("%d transactions in a row failed, the last: %w", failures, err)
			}
			continue
		}
		switch {
		case !r.Allowed:
			s.usedUp()
		case commit:
			t.admitted++
		default:
			t.rolledBack++
		}
	}
	return nil
}

// whileHeld returns when row was locked for long enough. stalled reports whether no
// other key was answered meanwhile.
func (c *Contest) whileHeld(ctx context.Context, row *heldRow) (stalled bool) {
	c.holding.now.Store(row)
	defer c.holding.now.Store(nil)
	if callers := c.holding.callers; len(callers) == cap(callers) { // their requests may have begun just before
		row.see(func() { row.called = true })
	}
	most := time.NewTimer(c.holding.most)
	defer most.Stop()
	select {
	case <-row.enough:
		return false
	case <-ctx.Done():
		return false
	case <-most.C:
		return row.seen() == 0
	}
}

// count adds a locked row to the report's counts.
func (c *Contest) count(row *heldRow, stalled, whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.meanwhile += row.seen()
	if stalled {
		c.stalls++
	}
	if whole {
		c.rowsHeld++
	}
}
