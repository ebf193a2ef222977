package janitor

import (
	"fmt"
	"log/slog"
	"time"
)

// The bounds and defaults of [Config].
const (
	defaultInterval  = time.Minute
	minInterval      = time.Millisecond
	maxInterval      = 24 * time.Hour
	defaultBatchSize = 1000
	maxBatchSize     = 10_000
	leaseIntervals   = 3 // the default lease, in intervals
	leastLease       = 30 * time.Second
	minLease         = time.Second
	maxLease         = leaseIntervals * maxInterval
)

// Config says how a [Janitor] works. The zero value of each field is its
// default; [New] refuses a value out of bounds and never bends one.
type Config struct {
	// Interval is the time from one sweep's end to the next one's start, give
	// or take a tenth at random. Default: 1 minute. 1 millisecond to 24 hours.
	// Empty rows change no decision, so the interval only says how much room
	// they take.
	Interval time.Duration

	// BatchSize is how many rows one statement looks at, at most. Default: 1000.
	// 1 to 10,000. Larger batches hold their locks for longer, and need not be
	// faster: for a batch that is a large part of the table PostgreSQL reads the
	// whole table instead of looking its rows up.
	BatchSize int

	// Lease is for how long a process that vanished keeps others from
	// sweeping, and how long one statement may take. Default: three intervals,
	// but at least 30 seconds. 1 second to 72 hours. A lease shorter than the
	// interval is fine: whoever comes first sweeps.
	Lease time.Duration

	// Now gives the time by which rows are empty and the lease runs. Default: nil,
	// which is the database's clock, as it is for decisions. It is for tests;
	// all janitors and limiters of a database have to share one clock. It is
	// called by one goroutine at a time.
	Now func() time.Time

	// Logger hears of sweeps that failed (level error), leases that were lost
	// (warn) and rows that were deleted (debug). Default: nil, which is
	// slog.Default().
	Logger *slog.Logger

	// OnSweep is called after each sweep that was tried, with what it removed:
	// also if another process held the lease, and if the sweep failed half-way.
	// Default: nil, which is none. It runs on the goroutine of Run or Sweep, so
	// Run's next sweep waits for it; if both are called at once, so may it be.
	OnSweep func(Removed)
}

// complete returns c with its defaults filled in; c may be nil.
func (c *Config) complete() (Config, error) {
	var full Config
	if c != nil {
		full = *c
	}
	if full.Interval == 0 {
		full.Interval = defaultInterval
	}
	if full.Interval < minInterval || full.Interval > maxInterval {
		return full, fmt.Errorf("pglimit: janitor Config.Interval is %v: take %v to %v, or 0 for %v",
			full.Interval, minInterval, maxInterval, defaultInterval)
	}
	if full.BatchSize == 0 {
		full.BatchSize = defaultBatchSize
	}
	if full.BatchSize < 1 || full.BatchSize > maxBatchSize {
		return full, fmt.Errorf("pglimit: janitor Config.BatchSize is %d: take 1 to %d, or 0 for %d",
			full.BatchSize, maxBatchSize, defaultBatchSize)
	}
	if full.Lease == 0 {
		full.Lease = max(leaseIntervals*full.Interval, leastLease)
	}
	if full.Lease < minLease || full.Lease > maxLease {
		return full, fmt.Errorf("pglimit: janitor Config.Lease is %v: take %v to %v, or 0 for three intervals, at least %v",
			full.Lease, minLease, maxLease, leastLease)
	}
	if full.Logger == nil {
		full.Logger = slog.Default()
	}
	return full, nil
}
