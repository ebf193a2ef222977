package contest

import (
	"sync"
	"sync/atomic"
	"time"
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
