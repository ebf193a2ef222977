package soak

import (
	"fmt"
	"strconv"
	"sync"

	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// watched is a key whose admissions are all recorded, to compare them with the most that
// its policy may admit.
type watched struct {
	policy limiter.Policy
	key    string

	mu       sync.Mutex
	admitted []search.Admission // its capacity is reserved at the start, so that the heap stays as it is
	denied   int
}

// admissions are recorded of a key, which then gets no more requests.
const admissions = 8000

// newWatched returns the keys to watch, some of each policy. The calendar's hours are not
// among them: its bound depends on the time zone.
func newWatched(each int) (all []*watched) {
	for _, p := range policies {
		for i := range each {
			if p.Calendar == "" {
				all = append(all, &watched{policy: p, key: "watched-" + strconv.Itoa(i), admitted: make([]search.Admission, 0, admissions+callers)})
			}
		}
	}
	return all
}

// full reports whether no more admissions are recorded.
func (w *watched) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.admitted) >= admissions
}

// record records an answer.
func (w *watched) record(r limiter.Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !r.Allowed {
		w.denied++
	} else if !r.Replayed {
		w.admitted = append(w.admitted, search.Admission{At: r.At.UnixMicro(), Units: r.Granted})
	}
}

// bounds is what the watched keys show.
type bounds struct {
	keys, admitted, denied int
	exceeded               []string // an error for each key that got too much
}

// checkWatched compares what was admitted with what the policies may admit. No requests are
// sent any more.
func checkWatched(all []*watched) (b bounds) {
	for _, w := range all {
		b.keys++
		b.admitted += len(w.admitted)
		b.denied += w.denied
		if err := search.Check(&w.policy, w.admitted); err != nil {
			b.exceeded = append(b.exceeded, fmt.Sprintf("key %s of policy %s: %v", w.key, w.policy.Name, err))
		}
	}
	return b
}
