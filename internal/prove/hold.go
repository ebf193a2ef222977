package prove

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	// holdMost bounds a hold of a row, well under askTimeout.
	holdMost = 5 * time.Second
	// holdAnswers is how many asks for other keys have to be answered before a
	// hold ends.
	holdAnswers = 10
)

// heldCallers is how many of the workers ask for the held key at once: a quarter,
// and never all, as they wait and others have to be left for the other keys.
func heldCallers(workers int) int { return min(workers/2, max(1, workers/4)) }

// holding is about the row that a transaction holds.
type holding struct {
	most    time.Duration
	callers chan struct{} // one for each worker that asks for the held key
	now     atomic.Pointer[heldRow]
	over    atomic.Bool // no row will be held any more
}

// heldRow is a row that is held, and what others have been answered since.
type heldRow struct {
	ask
	holding *holding
	mu      sync.Mutex
	called  bool // a worker asks for its key, or no more may
	others  int64
	enough  chan struct{}
}

// enter lets a worker ask for the held key, unless too many do.
func (h *holding) enter() (leave func(), ok bool) {
	select {
	case h.callers <- struct{}{}:
		return func() { <-h.callers }, true
	default:
		return nil, false
	}
}

// begin says that a worker begins to ask for s, and returns the row that is held
// then, which may be nil.
func (h *holding) begin(s subject) *heldRow {
	row := h.now.Load()
	if row != nil && row.subject == s {
		row.see(func() { row.called = true })
	}
	return row
}

// answered says that an ask for s, which began while the row was held, is answered.
func (r *heldRow) answered(s subject) {
	if r != nil && r.subject.kind != s.kind && r.holding.now.Load() == r {
		r.see(func() { r.others++ })
	}
}

// see changes what was seen, and ends the hold once that is enough.
func (r *heldRow) see(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.called && r.others >= holdAnswers
	change()
	if !before && r.called && r.others >= holdAnswers {
		close(r.enough)
	}
}

// seen returns how many asks for other keys were answered.
func (r *heldRow) seen() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.others
}

// hold holds rows, one after the other, until then, but at least one to its end.
// Each is held until the key was asked for and others were answered.
func (c *contest) hold(ctx context.Context, until time.Time) error {
	defer c.holding.over.Store(true)
	books := map[subject]*tally{}
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.add(books)
	}()
	failures := 0
	for done := false; ctx.Err() == nil && (!done || time.Now().Before(until)); {
		s := c.of(heldKind)
		t := books[s.subject]
		if t == nil {
			t = &tally{}
			books[s.subject] = t
		}
		t.asks++
		t.asked++
		commit := rand.IntN(2) == 0
		row := &heldRow{ask: s, holding: &c.holding, enough: make(chan struct{})}
		stalled := false
		r, err := c.holder.askInTx(ctx, s.policy, s.key, 1, commit, func() { stalled = c.whileHeld(ctx, row) })
		c.count(row, stalled, err == nil)
		switch {
		case err == nil:
			done, failures = true, 0
		case errors.Is(err, limiter.ErrRetryTx):
			continue
		case hopeless(err):
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

// whileHeld returns when row was held for long enough, and whether it stalled all
// others.
func (c *contest) whileHeld(ctx context.Context, row *heldRow) (stalled bool) {
	c.holding.now.Store(row)
	defer c.holding.now.Store(nil)
	if callers := c.holding.callers; len(callers) == cap(callers) { // they may have begun just before
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

// count adds a hold to those that the report shows.
func (c *contest) count(row *heldRow, stalled, whole bool) {
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
