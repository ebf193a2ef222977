package contest

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Algorithm is what was seen of one algorithm. Asked, Admitted, Allowed,
// RolledBack and Unknown are units.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Keys      int               `json:"keys"`
	Requests  int64             `json:"requests"`
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

func (p *Part) add(t *tally, most float64) {
	p.Keys++
	p.Asked += t.asked
	p.Admitted += t.admitted
	p.Allowed += most
}

// tallies are what was seen of each key.
type tallies map[subject]*tally

// tally is what was seen of one key. All but asks are units.
type tally struct{ requests, asked, admitted, rolledBack, unknown int64 }

// of returns the tally of a key.
func (all tallies) of(s subject) *tally {
	t := all[s]
	if t == nil {
		t = &tally{}
		all[s] = t
	}
	return t
}

// add adds the tallies of a worker.
func (all tallies) add(books tallies) {
	for s, b := range books {
		t := all.of(s)
		t.requests += b.requests
		t.asked += b.asked
		t.admitted += b.admitted
		t.rolledBack += b.rolledBack
		t.unknown += b.unknown
	}
}

// p99 is the 99th percentile, 0 of nothing. It sorts in place.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
