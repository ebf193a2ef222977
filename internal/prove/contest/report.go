package contest

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Algorithm has the results of one algorithm. Asked, Admitted, Allowed, RolledBack and
// Unknown are units.
type Algorithm struct {
	Algorithm limiter.Algorithm `json:"algorithm"`
	Keys      int               `json:"keys"`
	Requests  int64             `json:"requests"`
	Asked     int64             `json:"asked"`
	// Admitted units were acknowledged and, in a transaction, committed.
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
	// Plans has the keys that were requested under two limits in turn.
	Plans Part `json:"plans"`
	// Held has the keys whose rows a transaction locked.
	Held Held `json:"held"`
	// Exceeded lists the keys that were admitted more than allowed.
	Exceeded []Excess `json:"exceeded"`
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

// Excess is a key that was admitted more than allowed.
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

// tallies has the counts of each key.
type tallies map[subject]*tally

// tally has the counts of one key, in units except for requests.
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

// p99 returns the 99th percentile, 0 if all is empty. It sorts all in place.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
