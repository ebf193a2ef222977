package limiter

import (
	"slices"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Algorithm names how a [Policy] decides. Its value is the name used in SQL,
// JSON, YAML, flags and docs.
type Algorithm string

const (
	// LeakyBucket is the leaky bucket as a meter (policing): a bucket of Burst
	// units that leaks Limit units per Period; an ask that would overflow it is
	// denied. With Policy.Tick it leaks in whole steps.
	LeakyBucket Algorithm = "leaky_bucket"
	// LeakyBucketQueue is the leaky bucket as a queue (shaping): up to Burst
	// units wait in it and leave at the even pace of Limit per Period;
	// Result.Delay is the wait for one's turn, and Wait sleeps it.
	LeakyBucketQueue Algorithm = "leaky_bucket_queue"
	// TokenBucket holds up to Burst tokens; Limit tokens per Period come back.
	TokenBucket Algorithm = "token_bucket"
	// GCRA is the generic cell rate algorithm of ITU-T I.371. It decides as
	// TokenBucket does and is known from networks and from Redis.
	GCRA Algorithm = "gcra"
	// FixedWindow counts up to Limit units in a window of one Period, which
	// starts at the first hit or, with Policy.Aligned, on the clock. Twice the
	// limit can pass around the edge of two windows.
	FixedWindow Algorithm = "fixed_window"
	// SlidingWindowCounter counts in windows of one Period on the clock and
	// weighs the one before by how much of it the last Period still covers:
	// nearly the sliding log at the price of two numbers.
	SlidingWindowCounter Algorithm = "sliding_window_counter"
	// SlidingWindowLog keeps each decision of the last Period: at most Limit
	// units in any window of one Period, exactly. Its row grows with the
	// number of decisions in a period; above about 1,000 prefer
	// SlidingWindowCounter.
	SlidingWindowLog Algorithm = "sliding_window_log"
)

// algorithms is the one list of them, in the order that statements on several
// tables lock in.
var algorithms = [...]Algorithm{
	LeakyBucket, LeakyBucketQueue, TokenBucket, GCRA,
	FixedWindow, SlidingWindowCounter, SlidingWindowLog,
}

// Algorithms returns every algorithm, in a fixed order.
func Algorithms() []Algorithm { return append([]Algorithm(nil), algorithms[:]...) }

// index is a's place in algorithms, or -1.
func (a Algorithm) index() int { return slices.Index(algorithms[:], a) }

func (a Algorithm) known() bool { return a.index() >= 0 }

// family is what state the algorithm keeps.
func (a Algorithm) family() algorithm.Family {
	switch a {
	case FixedWindow:
		return algorithm.Windows
	case SlidingWindowCounter:
		return algorithm.Counters
	case SlidingWindowLog:
		return algorithm.Logs
	}
	return algorithm.Buckets
}

// bucket tells the algorithms that leak from those that count in windows.
func (a Algorithm) bucket() bool {
	return a == LeakyBucket || a == LeakyBucketQueue || a == TokenBucket || a == GCRA
}
