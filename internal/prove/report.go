package prove

import (
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Report is what a proof saw.
type Report struct {
	// Holds is whether no key was admitted more than its policy allows.
	Holds bool `json:"holds"`
	// Took is how long it took, in seconds.
	Took float64 `json:"took_s"`
	// Workers asked at once, over so many Pools.
	Workers int `json:"workers"`
	Pools   int `json:"pools"`
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
	// Exceeded lists the keys that were admitted more than is allowed.
	Exceeded []Excess `json:"exceeded"`
}

// Excess is a key that was admitted too much.
type Excess struct {
	Policy   limiter.Policy `json:"policy"`
	Key      string         `json:"key"`
	Admitted int64          `json:"admitted"`
	Allowed  float64        `json:"allowed"`
}

// p99 is the 99th percentile, 0 of nothing. It sorts in place.
func p99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
