package contest

import (
	"github.com/pglimit/pglimit/limiter"
)

// tallies has the counts of each key.
type tallies map[subject]*tally

// tally has the counts of one key, in units except for requests.
type tally struct {
	plans []limiter.Policy // under which it was requested
	set   string           // its set of keys, or ""
	alike bool             // it was requested only together with other keys of its set

	requests, asked, admitted, rolledBack, unknown int64

	windows map[int64]int64 // what was admitted in each window with fixed edges, by its beginning
	fault   string          // the first, or ""
}

// of returns the tally of the key of a request.
func (all tallies) of(s request) *tally {
	t := all[s.subject]
	if t == nil {
		t = &tally{plans: s.plans}
		all[s.subject] = t
	}
	return t
}

// add adds the tallies of a worker.
func (all tallies) add(books tallies) {
	for s, b := range books {
		t := all[s]
		if t == nil {
			all[s] = b
			continue
		}
		t.requests += b.requests
		t.asked += b.asked
		t.admitted += b.admitted
		t.rolledBack += b.rolledBack
		t.unknown += b.unknown
		if t.windows == nil {
			t.windows = b.windows
		} else {
			for begins, n := range b.windows {
				t.windows[begins] += n
			}
		}
		if t.set == "" {
			t.set = b.set
		}
		t.alike = t.alike || b.alike
		if b.fault != "" {
			t.wrong("%s", b.fault)
		}
	}
}
