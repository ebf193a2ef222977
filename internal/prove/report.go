package prove

import (
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Report is what a proof saw.
type Report struct {
	// Holds is whether no key was admitted more than its policy allows, and
	// whether other keys were answered while a row was held. Through a pooler only
	// the first counts: it may have too few connections for the second.
	Holds bool `json:"holds"`
	// Took is how long it took, in seconds.
	Took float64 `json:"took_s"`
	// Workers asked at once, over so many Pools.
	Workers int `json:"workers"`
	Pools   int `json:"pools"`
	// Pooler is whether a connection pooler stood between them and the server.
	Pooler bool `json:"pooler"`
	// Killed is how many connections the server was told to end.
	Killed int64 `json:"killed"`
	// Algorithms has one entry for each.
	Algorithms []Algorithm `json:"algorithms"`
}

// Algorithm is what was seen of one algorithm. Asked, Admitted, Allowed,
// RolledBack and Unknown are units.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Keys      int               `json:"keys"`
	Asks      int64             `json:"asks"`
	Asked     int64             `json:"asked"`
	// Admitted was acknowledged and, in a transaction, committed.
	Admitted int64 `json:"admitted"`
	// Allowed is the sum of what the policies admit to the keys in that time.
	Allowed float64 `json:"allowed"`
	// RolledBack was admitted in transactions that were rolled back.
	RolledBack int64 `json:"rolled_back"`
	// Unknown was asked by clients that were killed or went away before they
	// had an answer: it may be counted, but nobody was admitted.
	Unknown int64 `json:"unknown"`
	// PerSecond is how many asks were answered in a second.
	PerSecond float64 `json:"per_second"`
	// P99 is within how many seconds 99 of 100 lone asks were answered.
	P99 float64 `json:"p99_s"`
	// Plans are the keys that were asked for under two limits in turn.
	Plans Part `json:"plans"`
	// Held are the keys whose rows a transaction held.
	Held Held `json:"held"`
	// Exceeded lists the keys that were admitted more than is allowed.
	Exceeded []Excess `json:"exceeded"`
}

// Part is what was seen of some of the keys. Asked, Admitted and Allowed are
// units.
type Part struct {
	Keys     int     `json:"keys"`
	Asked    int64   `json:"asked"`
	Admitted int64   `json:"admitted"`
	Allowed  float64 `json:"allowed"`
}

// Held is what was seen of keys whose rows a transaction held while others asked.
type Held struct {
	Part
	// Rows is how often a row was held.
	Rows int64 `json:"rows"`
	// Meanwhile is how many asks for other keys were made and answered while a
	// row was held.
	Meanwhile int64 `json:"answered_meanwhile"`
	// Stalls is how often no other key was answered for as long as a row was held.
	Stalls int64 `json:"stalls"`
}

// Excess is a key that was admitted too much.
type Excess struct {
	Policy   limiter.Policy `json:"policy"`
	Key      string         `json:"key"`
	Admitted int64          `json:"admitted"`
	Allowed  float64        `json:"allowed"`
}

// report holds what was seen to what elapsed, by the clock that decides,
// allows; took is how long the workers worked.
func (c *contest) report(took, elapsed time.Duration) Algorithm {
	a := Algorithm{Algorithm: c.kinds[hotKind].plans[0].Algorithm, Keys: len(c.tallies), Exceeded: []Excess{}}
	for s, t := range c.tallies {
		g := c.kinds[s.kind]
		most := allowedOf(g.plans, elapsed)
		if s.kind != hotKind {
			most = math.Floor(most + slack)
		}
		a.Asks += t.asks
		a.Asked += t.asked
		a.Admitted += t.admitted
		a.Allowed += most
		a.RolledBack += t.rolledBack
		a.Unknown += t.unknown
		switch s.kind {
		case plansKind:
			a.Plans.add(t, most)
		case heldKind:
			a.Held.add(t, most)
		}
		if exceeds(float64(t.admitted), most) {
			a.Exceeded = append(a.Exceeded, Excess{g.largest(), s.key, t.admitted, most})
		}
	}
	a.Held.Rows, a.Held.Meanwhile, a.Held.Stalls = c.rowsHeld, c.meanwhile, c.stalls
	a.PerSecond = float64(c.answered) / took.Seconds()
	a.P99 = p99(c.latencies).Seconds()
	return a
}

func (p *Part) add(t *tally, most float64) {
	p.Keys++
	p.Asked += t.asked
	p.Admitted += t.admitted
	p.Allowed += most
}

// p99 is the 99th percentile, 0 of nothing. It sorts in place.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
