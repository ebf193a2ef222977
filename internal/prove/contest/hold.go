package contest

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// holdMost bounds the hold of a row. It is well under the time that asks wait.
	holdMost = 5 * time.Second
	// holdAnswers is how many asks for other keys have to be answered before a
	// hold ends.
	holdAnswers = 10
)

// heldCallers is how many of the workers ask for the held key at once: a quarter,
// and never all, as they wait and others have to be left for the other keys.
func heldCallers(workers int) int { return min(workers/2, max(1, workers/4)) }

// holding is the state of the row that a transaction holds.
type holding struct {
	most    time.Duration
	callers chan struct{} // one for each worker that asks for the held key
	now     atomic.Pointer[heldRow]
	over    atomic.Bool // no row will be held any more
}

// heldRow is a row that is held, and counts the answers to others meanwhile.
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

// begin notes that a worker begins to ask for s. It returns the row that is held then,
// or nil.
func (h *holding) begin(s subject) *heldRow {
	row := h.now.Load()
	if row != nil && row.subject == s {
		row.see(func() { row.called = true })
	}
	return row
}

// answered notes the answer to an ask for s that began while the row was held.
func (r *heldRow) answered(s subject) {
	if r != nil && r.subject.kind != s.kind && r.holding.now.Load() == r {
		r.see(func() { r.others++ })
	}
}

// see changes what was seen. It ends the hold when enough was seen.
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
