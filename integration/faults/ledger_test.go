package faults

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/ledger"
	"github.com/pglimit/pglimit/limiter"
)

// place is where units count: a row of the limiter.
type place struct{ policy, key string }

// change is what one request did to a place: see ledger.Account's Add.
type change struct {
	at          place
	when        time.Time // of the answer
	least, most float64
	what        string // the request
	err         error  // its answer
	order       string // the row that the same transaction inserted, if any
}

// String describes a change for the report of a failure.
func (c change) String() string {
	text := fmt.Sprintf("%s %s: %v to %v", c.when.Format("05.000"), c.what, c.least, c.most)
	if c.err != nil {
		text += ": " + c.err.Error()
	}
	return text
}

// sent is a request that was or will be sent, and what it adds to places once it is answered.
type sent struct {
	What  string
	Parts []part
	Once  string `json:",omitempty"` // the idempotency key, under which it may be sent again
}

// part is the units that a request adds to one place. Negative ones are given back.
type part struct {
	Policy limiter.Policy
	Key    string
	Units  float64
	Order  string `json:",omitempty"` // the row that the same transaction inserts, if any
}

// books are what all callers know of what they sent.
type books struct {
	tell func(note) // to the parent of a program; nil elsewhere
	ids  atomic.Int64

	mu       sync.Mutex
	changes  []change
	admitted []admission
	losses   []loss
	lent     float64 // units that leases granted
	ofLeased float64 // units admitted of policies with leases
}

// entry is a request in flight.
type entry struct {
	*books
	id int64
	sent
}

// begin notes a request before it is sent.
func (b *books) begin(what, once string, parts ...part) *entry {
	e := &entry{b, b.ids.Add(1), sent{what, parts, once}}
	if b.tell != nil {
		b.tell(note{ID: e.id, Sent: &e.sent})
	}
	return e
}

// end records what became of the request.
func (e *entry) end(o outcome, err error) {
	e.record(e.sent, o, err)
	if e.tell != nil {
		n := note{ID: e.id, Sent: &e.sent, Outcome: &o}
		if err != nil {
			n.Err = err.Error()
		}
		e.tell(n)
	}
}

// admission is units that a tight limit let pass.
type admission struct {
	policy limiter.Policy
	key    string
	when   time.Time // of the answer
	search.Admission
}

// loss is a time whose acknowledged requests a fault may lose, such as those before the
// failover to a standby that does not have them yet.
type loss struct {
	from, until time.Time
	policies    string // what their names begin with
}

// record records what became of a request.
func (b *books) record(r sent, o outcome, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range r.Parts {
		c := change{at: place{p.Policy.Name, p.Key}, when: time.Now(), what: r.What, err: err}
		switch o {
		case answered:
			c.least, c.most, c.order = p.Units, p.Units, p.Order
		case lost:
			c.least, c.most = min(0, p.Units), max(0, p.Units)
		}
		b.changes = append(b.changes, c)
	}
}

// add records a request that was answered.
func (b *books) add(what string, p limiter.Policy, key string, units float64) {
	b.record(sent{What: what, Parts: []part{{p, key, units, ""}}}, answered, nil)
}

// admit records an answer of a tight limit.
func (b *books) admit(p limiter.Policy, key string, r limiter.Result) {
	if b.tell != nil {
		b.tell(note{Admitted: &part{Policy: p, Key: key, Units: r.Granted}, At: r.At, Lent: r.Source == limiter.SourceLease})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Lease > 0 {
		b.ofLeased += r.Granted
	}
	if r.Source == limiter.SourceLease {
		b.lent += r.Granted
	}
	b.admitted = append(b.admitted, admission{p, key, time.Now(), search.Admission{At: r.At.UnixMicro(), Units: r.Granted}})
}

func (b *books) mayLose(l loss) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.losses = append(b.losses, l)
}

// lossy reports whether what was acknowledged at a moment may be lost.
func (b *books) lossy(policy string, when time.Time) bool {
	for _, l := range b.losses {
		if strings.HasPrefix(policy, l.policies) && !when.Before(l.from) && !when.After(l.until) {
			return true
		}
	}
	return false
}

// lossySoFar reports whether the fault may have lost anything acknowledged of a policy.
func (b *books) lossySoFar(policy string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.losses {
		if strings.HasPrefix(policy, l.policies) {
			return true
		}
	}
	return false
}

// accounts sums up all changes.
func (b *books) accounts() map[place]*ledger.Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := map[place]*ledger.Account{}
	for _, c := range b.changes {
		a := all[c.at]
		if a == nil {
			a = &ledger.Account{}
			all[c.at] = a
		}
		if b.lossy(c.at.policy, c.when) {
			a.AddLossy(c.least, c.most)
		} else {
			a.Add(c.least, c.most)
		}
	}
	return all
}

// history describes the changes of a place that say how its count can differ from what is
// expected: those without an answer and those that gave units back.
func (b *books) history(at place) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var text strings.Builder
	for _, c := range b.changes {
		if c.at == at && (c.err != nil || c.least <= 0 || c.most <= 0) {
			fmt.Fprintf(&text, "\n\t%v", c)
		}
	}
	return text.String()
}

// orders returns the orders whose commit was acknowledged, and of those what may be lost.
func (b *books) orders() (kept, lossy []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.changes {
		switch {
		case c.order == "" || c.least != c.most:
		case b.lossy(c.at.policy, c.when):
			lossy = append(lossy, c.order)
		default:
			kept = append(kept, c.order)
		}
	}
	return kept, lossy
}

// exceeded compares what tight limits admitted with their exact bound, and sums up what they
// admitted and allowed between the first and the last answer. What was lost may be admitted
// again, so it does not count.
func (b *books) exceeded() (admitted, allowed float64, excess []error) {
	type kept struct {
		policy      limiter.Policy
		first, last int64
		all         []search.Admission
	}
	all := map[place]*kept{}
	for _, a := range b.admitted {
		at := place{a.policy.Name, a.key}
		k := all[at]
		if k == nil {
			k = &kept{policy: a.policy, first: a.At, last: a.At}
			all[at] = k
		}
		k.first, k.last = min(k.first, a.At), max(k.last, a.At)
		admitted += a.Units
		if b.lossy(at.policy, a.when) {
			allowed += a.Units
		} else {
			k.all = append(k.all, a.Admission)
		}
	}
	for at, k := range all {
		allowed += bound.Allowed([]bound.Plan{verbs.Plan(&k.policy)}, time.UnixMicro(k.first), time.UnixMicro(k.last))
		if err := search.Check(&k.policy, k.all); err != nil {
			excess = append(excess, fmt.Errorf("%s of %s: %w", at.key, at.policy, err))
		}
	}
	return admitted, allowed, excess
}
