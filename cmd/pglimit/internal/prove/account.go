package contest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/bound"
	"github.com/pglimit/pglimit/internal/ledger"
	"github.com/pglimit/pglimit/limiter"
)

// tallies has the counts of each key.
type tallies map[subject]*tally

// tally has the counts of one key, in units except for requests.
type tally struct {
	plans []limiter.Policy // under which it was requested
	set   string           // its set of keys, or ""
	alike bool             // it was requested only together with other keys of its set

	requests, asked, rolledBack int64
	ledger.Account

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
		t.rolledBack += b.rolledBack
		t.Merge(b.Account)
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

// reservations are those of one key, in units. A client learns of each change only after
// the database made it, or never: so the account has bounds for what the database counts.
type reservations struct {
	mu sync.Mutex
	// kept is the least that is admitted now: open reservations, and settled ones up to
	// what was reserved. most is the largest kept so far.
	kept, most int64
	account    ledger.Account

	made, settled, cancelled, leftOpen, late int64
}

// change counts one more of what, and changes kept and the bounds of the account.
func (r *reservations) change(what *int64, kept, least, most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if what != nil {
		*what++
	}
	r.kept += kept
	r.most = max(r.most, r.kept)
	r.account.Add(float64(least), float64(most))
}

// reserved records a reservation of n units.
func (r *reservations) reserved(n int64) { r.change(&r.made, n, n, n) }

// maybeReserved records a Reserve without an answer.
func (r *reservations) maybeReserved(n int64) { r.change(nil, 0, 0, n) }

// ending records that a reservation of n units is about to be settled with a; 0 is also
// for Cancel. What it gives back may be admitted to others before the answer.
func (r *reservations) ending(n, a int64) {
	back := max(0, n-a)
	r.change(nil, -back, -back, 0)
}

// ended records the answer after ending. what is how it ended.
func (r *reservations) ended(what *int64, n, a int64) { r.change(what, 0, max(0, a-n), a-n) }

// maybeEnded records that there was no answer after ending.
func (r *reservations) maybeEnded(n, a int64) { r.change(nil, 0, 0, max(0, a-n)) }

// expiring records that a reservation is left open: it counts for a while.
func (r *reservations) expiring(n int64) { r.change(&r.leftOpen, -n, -n, 0) }

// lateEnded records that a reservation was settled after expiring. That counts its units
// even if others have been admitted meanwhile.
func (r *reservations) lateEnded(n, a int64) { r.change(&r.late, 0, a, a-n) }

// inWindow counts an answer for a key whose windows have fixed edges in the window of its
// time, and compares the end of the window in the answer with the right one.
func (t *tally) inWindow(p limiter.Policy, r limiter.Result, n int64, admitted bool) {
	begins, ends := bound.Window(planOf(p), r.At)
	if end := r.At.Add(r.ResetAfter); r.Level > 0 && !end.Equal(ends) {
		t.wrong("the answer at %s ends its window at %s instead of %s", stamp(r.At), stamp(end), stamp(ends))
	}
	if !admitted {
		return
	}
	if t.windows == nil {
		t.windows = map[int64]int64{}
	}
	t.windows[begins.UnixMicro()] += n
}

// planOf returns the numbers of p.
func planOf(p limiter.Policy) bound.Plan {
	return bound.Plan{
		Algorithm: algorithm.Name(p.Algorithm), Limit: p.Limit, Burst: p.Burst, Period: p.Period, Tick: p.Tick,
		Aligned: p.Aligned, Calendar: algorithm.Unit(p.Calendar), TimeZone: p.TimeZone,
	}
}

// checkWindows compares what each window admitted with its limit.
func (t *tally) checkWindows() {
	for begins, admitted := range t.windows {
		if most := t.plans[0].Limit; bound.Exceeded(float64(admitted), most) {
			// It says more than the wrong end in an answer that led to it.
			t.fault = fmt.Sprintf("the window that begins at %s admitted %d of %.0f", stamp(time.UnixMicro(begins)), admitted, most)
		}
	}
}

// stamp formats a time for a fault.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }

// wrong records a fault, the first of a key only.
func (t *tally) wrong(format string, args ...any) {
	if t.fault == "" {
		t.fault = fmt.Sprintf(format, args...)
	}
}

// Algorithm has the results of one algorithm. Asked, Admitted, Allowed, RolledBack and
// Unknown are units.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Keys      int               `json:"keys"`
	Requests  int64             `json:"requests"`
	Asked     int64             `json:"asked"`
	// Admitted units were acknowledged and, in a transaction, committed. Of reservations
	// they are the most at one time.
	Admitted int64 `json:"admitted"`
	// Allowed is the most units that the policies admit to the keys in that time.
	Allowed float64 `json:"allowed"`
	// RolledBack units were admitted in transactions that were rolled back.
	RolledBack int64 `json:"rolled_back"`
	// Unknown units were requested by clients that were killed or disconnected before
	// the answer: they may be counted, but were not admitted.
	Unknown int64 `json:"unknown"`
	// PerSecond is the number of requests answered per second.
	PerSecond float64 `json:"per_second"`
	// P99 is the 99th percentile, in seconds, of the latency of requests outside
	// transactions for rows that are not locked.
	P99 float64 `json:"p99_s"`
	// Plans has the keys that were requested under several limits, bursts and periods.
	Plans Part `json:"plans"`
	// Held has the keys whose rows a transaction locked.
	Held Held `json:"held"`
	// Ticks has the keys that leak in whole ticks: of leaky_bucket, else nil.
	Ticks *Part `json:"ticks,omitempty"`
	// Aligned has the keys with windows on the clock, and Calendars those with windows of
	// a calendar: of fixed_window, else nil.
	Aligned   *Part `json:"aligned,omitempty"`
	Calendars *Part `json:"calendars,omitempty"`
	// Sets has the keys that were requested by AllowAll.
	Sets Part `json:"allow_all"`
	// Reserved has the keys that were requested by Reserve. It is nil for
	// leaky_bucket_queue, which has no reservations.
	Reserved *Reserved `json:"reservations,omitempty"`
	// Exceeded lists the keys that were admitted more than allowed.
	Exceeded []Excess `json:"exceeded"`
	// Faults lists the keys that were counted or answered wrongly in another way.
	Faults []Fault `json:"faults"`
}

// Part has the results of some of the keys. Asked, Admitted and Allowed are units.
type Part struct {
	Keys     int     `json:"keys"`
	Asked    int64   `json:"asked"`
	Admitted int64   `json:"admitted"`
	Allowed  float64 `json:"allowed"`
}

// Held has the results of keys whose rows a transaction locked during other requests.
type Held struct {
	Part
	// Rows is the number of times that a row was locked.
	Rows int64 `json:"rows"`
	// Meanwhile is the number of requests for other keys that began and were answered
	// while a row was locked.
	Meanwhile int64 `json:"answered_meanwhile"`
	// Stalls is the number of locked rows during which no other key was answered.
	Stalls int64 `json:"stalls"`
}

// Reserved has the results of keys with reservations. Admitted is the most units at one
// time: of open reservations, and of those that were settled.
type Reserved struct {
	Part
	// Made is the number of reservations. Settled, Cancelled and LeftOpen are what their
	// clients did with them, and Late is the number of those left open that were settled
	// after they had expired.
	Made      int64 `json:"made"`
	Settled   int64 `json:"settled"`
	Cancelled int64 `json:"cancelled"`
	LeftOpen  int64 `json:"left_open"`
	Late      int64 `json:"settled_late"`
}

// Excess is a key that was admitted more than allowed.
type Excess struct {
	Policy   limiter.Policy `json:"policy"`
	Key      string         `json:"key"`
	Admitted int64          `json:"admitted"`
	Allowed  float64        `json:"allowed"`
}

// Fault is a key that was counted or answered wrongly.
type Fault struct {
	Policy limiter.Policy `json:"policy"`
	Key    string         `json:"key"`
	Fault  string         `json:"fault"`
}

// Add adds another part.
func (p *Part) Add(q Part) {
	p.Keys += q.Keys
	p.Asked += q.Asked
	p.Admitted += q.Admitted
	p.Allowed += q.Allowed
}

// report compares the counts with the bounds between two times of the database's clock.
// took is the time that the workers worked.
func (c *Contest) report(took time.Duration, from, to time.Time) Algorithm {
	a := Algorithm{Algorithm: c.algorithm, Keys: len(c.tallies), Exceeded: []Excess{}, Faults: []Fault{}}
	parts := map[kind]*Part{plansKind: &a.Plans, heldKind: &a.Held.Part, setsKind: &a.Sets}
	if c.groups[ticksKind] != nil {
		a.Ticks = &Part{}
		parts[ticksKind] = a.Ticks
	}
	if c.groups[alignedKind] != nil {
		a.Aligned, a.Calendars = &Part{}, &Part{}
		parts[alignedKind], parts[calendarKind] = a.Aligned, a.Calendars
	}
	if c.groups[reservedKind] != nil {
		a.Reserved = &Reserved{}
		parts[reservedKind] = &a.Reserved.Part
	}
	for s, t := range c.tallies {
		admitted := int64(t.Acknowledged)
		if r := c.reservations[s]; r != nil {
			admitted = r.most
			a.Reserved.Made += r.made
			a.Reserved.Settled += r.settled
			a.Reserved.Cancelled += r.cancelled
			a.Reserved.LeftOpen += r.leftOpen
			a.Reserved.Late += r.late
		}
		var plans []bound.Plan
		for _, p := range t.plans {
			plans = append(plans, planOf(p))
		}
		most := bound.Allowed(plans, from, to)
		if s.kind != hotKind {
			most = math.Floor(most + bound.Slack)
		}
		a.Requests += t.requests
		a.Asked += t.asked
		a.Admitted += admitted
		a.Allowed += most
		a.RolledBack += t.rolledBack
		a.Unknown += int64(t.Unknown)
		if p := parts[s.kind]; p != nil {
			p.Add(Part{1, t.asked, admitted, most})
		}
		if bound.Exceeded(float64(admitted), most) {
			a.Exceeded = append(a.Exceeded, Excess{t.plans[0], s.key, admitted, most})
		}
		if t.checkWindows(); t.fault != "" {
			a.Faults = append(a.Faults, Fault{t.plans[0], s.key, t.fault})
		}
	}
	slices.SortFunc(a.Exceeded, func(x, y Excess) int { return cmp.Compare(x.Key, y.Key) })
	slices.SortFunc(a.Faults, func(x, y Fault) int { return cmp.Compare(x.Key, y.Key) })
	a.Held.Rows, a.Held.Meanwhile, a.Held.Stalls = c.rowsHeld, c.meanwhile, c.stalls
	a.PerSecond = float64(c.answered) / took.Seconds()
	a.P99 = p99(c.latencies).Seconds()
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
