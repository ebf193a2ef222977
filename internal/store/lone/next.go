package lone

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/internal/store/waiting"
)

// batch is requests that are sent together, and the flows that they are of.
type batch struct {
	calls []*call
	flows []*flow
	known int // of the last flow: requests that a denial would answer
	// After a send: those whose row is locked, and those that are to be sent alone.
	locked, again []*call
}

// The number of requests for one key in a transaction. They keep the row locked, and the
// statements of other processes wait for it for waiting.Patience.
const (
	ofOneKey  = 64
	ofEachKey = 16 // if other keys wait
	// A key for which more wait shares no transaction with other keys, which would wait for
	// its row.
	ofCoolKey = 4
)

// next takes the next request off its flow, and those that share its transaction. It
// reports whether there is one. s.mu is locked.
//
// Requests share a transaction if more wait than may be in flight: then they would wait for
// each other in any case. A key's requests are in the order of arrival. Requests for several
// keys are in lock order, so that no two transactions wait for each other. Where a denial
// that is remembered answers those behind it, only as many share as may be granted.
func (s *Store) next(b *batch) bool {
	clear(b.calls)
	clear(b.flows)
	*b = batch{calls: b.calls[:0], flows: b.flows[:0]}
	for {
		var f *flow
		may := (*flow).first
		switch {
		case len(s.turns) > 0:
			f, s.turns = pop(s.turns)
			f.inTurns = false
		case len(s.seconds) > 0:
			f, s.seconds = pop(s.seconds)
			f.inSeconds = false
			may = (*flow).second
		default:
			return false
		}
		if may(f) && s.take(b, f, 1) {
			if c := b.calls[0]; c.joins(c) && s.share > 1 && s.inner.Pipelines() {
				s.fill(b, f)
			}
			s.list(f)
			return true
		}
		s.list(f)
	}
}

// take takes requests off a flow until the batch has n. It reports whether it took any.
// s.mu is locked.
func (s *Store) take(b *batch, f *flow, n int) bool {
	last := len(b.flows) > 0 && b.flows[len(b.flows)-1] == f
	had, known := len(b.calls), 0
	if last {
		known = b.known
	}
	for len(b.calls) < n && len(f.calls) > 0 {
		c := f.calls[0]
		if len(b.calls) > 0 && (!c.joins(b.calls[0]) || c.op.Known != nil && known > f.trusted) {
			break
		}
		_, f.calls = pop(f.calls)
		if f.key.reads {
			s.reads--
		}
		if c.ticket.Gone() {
			continue
		}
		if c.op.Known != nil {
			known++
		}
		c.ticket.State, c.flow = waiting.Sent, f
		b.calls = append(b.calls, c)
	}
	if len(b.calls) == had {
		return false
	}
	if b.known = known; !last {
		b.flows = append(b.flows, f)
		f.inFlight++
	}
	return true
}

// joins reports whether c may share a transaction with first.
func (c *call) joins(first *call) bool {
	return c.op.Shares() && first.op.Shares() && !c.alone && c.op.Commit == first.op.Commit
}

// fill adds to a batch, which has a request of f, its share of the requests that wait: so
// many that all of them can be in flight at once. s.mu is locked.
func (s *Store) fill(b *batch, f *flow) {
	ofKey := ofOneKey
	if len(s.turns) > 0 {
		ofKey = ofEachKey
	}
	flows := (len(s.turns) + 1) / s.most
	switch {
	case f.key.reads:
		n := min(s.share, (s.reads+1)/s.most)
		s.take(b, f, min(n, ofKey))
		s.gather(b, n, len(s.turns)+1, func(g *flow) bool { return g.key.reads })
	case flows > 1 && len(f.calls) < ofCoolKey:
		s.take(b, f, min(s.share, ofCoolKey))
		s.gather(b, s.share, flows, func(g *flow) bool { return !g.key.reads && g.first() && len(g.calls) <= ofCoolKey })
		slices.SortStableFunc(b.calls, (*call).compare)
	case len(f.calls) > 0: // all wait for the row of one key
		places := 1
		if len(s.turns) == 0 {
			places += min(abreast-f.inFlight, s.most-s.running)
		}
		s.take(b, f, min(s.share, ofKey, (len(f.calls)+places)/places))
	}
}

// gather adds requests of other flows in turn until the batch has n, or so many flows. s.mu
// is locked.
func (s *Store) gather(b *batch, n, flows int, of func(*flow) bool) {
	i, stay := 0, 0
	for most := 4 * n; i < len(s.turns) && len(b.calls) < n && len(b.flows) < flows && stay < most; i++ {
		g := s.turns[i]
		if len(g.calls) == 0 || !of(g) || !g.calls[0].joins(b.calls[0]) {
			s.turns[stay] = g
			stay++
			continue
		}
		g.inTurns = false
		s.take(b, g, min(n, len(b.calls)+ofEachKey))
		s.list(g)
	}
	copy(s.turns[i-stay:i], s.turns[:stay])
	clear(s.turns[:i-stay])
	s.turns = s.turns[i-stay:]
}

// compare compares in lock order: that of an AllowAll.
func (c *call) compare(d *call) int {
	a, b := c.key.Slot, d.key.Slot
	return cmp.Or(cmp.Compare(a.Algorithm.Index(), b.Algorithm.Index()), strings.Compare(a.Policy, b.Policy), strings.Compare(a.Key, b.Key))
}
