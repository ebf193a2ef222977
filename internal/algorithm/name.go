package algorithm

import "slices"

// Name is the name of an algorithm in SQL, JSON, flags and docs.
type Name string

// The algorithms.
const (
	LeakyBucket          Name = "leaky_bucket"
	LeakyBucketQueue     Name = "leaky_bucket_queue"
	TokenBucket          Name = "token_bucket"
	GCRA                 Name = "gcra"
	FixedWindow          Name = "fixed_window"
	SlidingWindowCounter Name = "sliding_window_counter"
	SlidingWindowLog     Name = "sliding_window_log"

	// Balance meters units that were paid for, not units per time: it is not in Names.
	Balance Name = "balance"
)

// Names lists the algorithms.
var Names = [...]Name{
	LeakyBucket, LeakyBucketQueue, TokenBucket, GCRA,
	FixedWindow, SlidingWindowCounter, SlidingWindowLog,
}

// Tables lists the algorithms that have tables, in the order in which statements on several
// tables lock their rows.
var Tables = [...]Name{
	LeakyBucket, LeakyBucketQueue, TokenBucket,
	FixedWindow, SlidingWindowCounter, SlidingWindowLog,
}

// Table returns the algorithm in whose table n's rows are: GCRA decides as TokenBucket does,
// on the same rows.
func (n Name) Table() Name {
	if n == GCRA {
		return TokenBucket
	}
	return n
}

// Indexes is the number of values of Index but -1.
const Indexes = len(Tables) + 1

// Index returns the place of n's table in the order of locks: that in Tables, or after them for
// a Balance. It is -1 for an unknown name.
func (n Name) Index() int {
	if n == Balance {
		return len(Tables)
	}
	return slices.Index(Tables[:], n.Table())
}

// Family groups the algorithms that keep the same state.
type Family int

// The families.
const (
	Buckets Family = iota
	Windows
	Counters
	Logs
	Balances
)

// Family returns the family of n.
func (n Name) Family() Family {
	switch n {
	case FixedWindow:
		return Windows
	case SlidingWindowCounter:
		return Counters
	case SlidingWindowLog:
		return Logs
	case Balance:
		return Balances
	}
	return Buckets
}
