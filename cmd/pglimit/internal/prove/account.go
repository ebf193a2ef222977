package prove

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/internal/ledger"
	"github.com/pglimit/pglimit/limiter"
)

// account is what the callers know of a key, or of one of its windows with fixed edges, in
// units.
type account struct {
	*place
	ledger.Account
	set   string // its set of keys, or ""
	fault string // the first, or ""
}

// wrong records a fault, the first of a key only.
func (a *account) wrong(format string, args ...any) {
	if a.fault == "" {
		a.fault = fmt.Sprintf(format, args...)
	}
}

// look judges an answer for the key by itself.
func (a *account) look(p limiter.Policy, r limiter.Result) {
	switch {
	case a.kind == Ticks && math.Abs(r.Level-math.Round(r.Level)) > bound.Slack:
		a.wrong("the answer at %s counts %.3f units, but only whole units leak in a tick", stamp(r.At), r.Level)
	case a.windowed() && r.Level > 0:
		_, ends := bound.Window(verbs.Plan(&p), r.At)
		if end := r.At.Add(r.ResetAfter); !end.Equal(ends) {
			a.wrong("the answer at %s ends its window at %s instead of %s", stamp(r.At), stamp(end), stamp(ends))
		}
	}
}

// allowed returns the most units that the key's policies admit between two times.
func (a *account) allowed(from, to time.Time) float64 {
	if a.windowed() {
		return a.plans[0].Limit
	}
	var plans []bound.Plan
	for _, p := range a.bounding() {
		plans = append(plans, verbs.Plan(&p))
	}
	most := bound.Allowed(plans, from, to)
	if a.kind != Hot {
		most = math.Floor(most + bound.Slack)
	}
	return most
}

// stamp formats a time for a fault.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }

// Algorithm has the results of one algorithm.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	// Part has the sums of all keys, and Kinds those of each kind that the algorithm has.
	Part
	Kinds []Part `json:"kinds"`
	// PerSecond is the number of calls answered per second.
	PerSecond float64 `json:"per_second"`
	// P99 is the 99th percentile, in seconds, of the latency of requests outside
	// transactions.
	P99 float64 `json:"p99_s"`
	// Exceeded lists the keys that were admitted more than allowed.
	Exceeded []Excess `json:"exceeded"`
	// Faults lists the keys that were counted or answered wrongly in another way.
	Faults []Fault `json:"faults"`
}

// Part has the results of some of the keys. All but Keys and Requests are units.
type Part struct {
	Kind     Kind    `json:"kind,omitempty"` // empty: all
	Keys     int     `json:"keys"`           // or windows, if those have fixed edges
	Requests int     `json:"requests"`
	Asked    float64 `json:"asked"`
	// Admitted units were acknowledged and, in a transaction, committed.
	Admitted float64 `json:"admitted"`
	// Allowed is the most units that the policies admit to the keys in that time.
	Allowed float64 `json:"allowed"`
	// RolledBack units were admitted in transactions that were rolled back.
	RolledBack float64 `json:"rolled_back"`
	// Unknown units were requested by clients that were killed or disconnected before
	// the answer: they may be counted, but were not admitted.
	Unknown float64 `json:"unknown"`
}

// Add adds another part.
func (p *Part) Add(q *Part) {
	p.Keys += q.Keys
	p.Requests += q.Requests
	p.Asked += q.Asked
	p.Admitted += q.Admitted
	p.Allowed += q.Allowed
	p.RolledBack += q.RolledBack
	p.Unknown += q.Unknown
}

// Excess is a key that was admitted more than allowed.
type Excess struct {
	Policy   limiter.Policy `json:"policy"`
	Key      string         `json:"key"`
	Admitted float64        `json:"admitted"`
	Allowed  float64        `json:"allowed"`
}

// Fault is a key that was counted or answered wrongly.
type Fault struct {
	Policy limiter.Policy `json:"policy"`
	Key    string         `json:"key"`
	Fault  string         `json:"fault"`
}

// report compares the accounts with the bounds between two times of the database's clock.
// took is the time that the workers worked.
func (c *contest) report(took time.Duration, from, to time.Time) Algorithm {
	a := Algorithm{
		Algorithm: c.algorithm, PerSecond: float64(c.answered) / took.Seconds(), P99: p99(c.latencies).Seconds(),
		Exceeded: []Excess{}, Faults: []Fault{},
	}
	for _, key := range slices.Sorted(maps.Keys(c.accounts)) {
		of := c.accounts[key]
		part, most := c.parts[of.kind], of.allowed(from, to)
		part.Keys++
		part.Admitted += of.Acknowledged
		part.Allowed += most
		if bound.Exceeded(of.Acknowledged, most) {
			a.Exceeded = append(a.Exceeded, Excess{of.plans[0], key, of.Acknowledged, most})
		}
		if of.fault != "" {
			a.Faults = append(a.Faults, Fault{of.plans[0], key, of.fault})
		}
	}
	for _, k := range kinds {
		if part := c.parts[k]; part != nil {
			a.Add(part)
			a.Kinds = append(a.Kinds, *part)
		}
	}
	return a
}

// p99 returns the 99th percentile, 0 if all is empty. It sorts all in place.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
