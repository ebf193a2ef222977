package janitor

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/janitor/internal/leader"
)

// The bounds and defaults of [Config].
const (
	defaultInterval  = time.Minute
	minInterval      = time.Millisecond
	maxInterval      = 24 * time.Hour
	defaultBatchSize = 1000
	maxBatchSize     = 10_000
	leaseIntervals   = 3 // default lease, in intervals
	leastLease       = 30 * time.Second
	minLease         = time.Second
	maxLease         = leader.Longest

	defaultKeepDenials = 24 * time.Hour
	minKeepDenials     = time.Minute
	maxKeepDenials     = 90 * 24 * time.Hour
)

// Config configures a [Janitor]. The zero value of each field selects its
// default. [New] returns limiter.ErrInvalid for a value out of bounds.
type Config struct {
	// Interval is the time from the end of one sweep to the start of the next,
	// varied at random by up to a tenth. Empty rows only take space, so a longer
	// interval changes no decision. Range: 1 millisecond to 24 hours.
	// Default: 1 minute.
	Interval time.Duration

	// BatchSize is the maximum number of rows that one statement checks. Larger
	// batches keep their locks longer. They may also be slower: if a batch is a
	// large part of the table, PostgreSQL scans the whole table.
	// Range: 1 to 10,000. Default: 1000.
	BatchSize int

	// Lease is the time after which other processes may sweep if this one
	// crashed. It also limits each statement. It may be shorter than Interval:
	// then the first process to take the lease sweeps. A lease in the database
	// that ends more than 72 hours from now is ignored. Range: 1 second to 72
	// hours. Default: three intervals, at least 30 seconds.
	Lease time.Duration

	// KeepDenials is the time for which counts of a deniallog.Log are kept, from
	// the end of their ten minutes. Of more than 100,000 counts of keys, the
	// oldest are added to their policy's count under the key "" earlier.
	// Range: 1 minute to 90 days. Default: 24 hours.
	KeepDenials time.Duration

	// Now returns the time that decides which rows are due and when leases end.
	// It is for tests. All janitors and limiters of a database must share one
	// clock. Calls are not concurrent. Default: the database's clock, as for
	// decisions.
	Now func() time.Time

	// Logger logs failed sweeps (level error), lost leases (warn) and deleted
	// rows (debug). Default: slog.Default().
	Logger *slog.Logger

	// OnSweep, if not nil, is called after each sweep with the rows removed, even
	// if another process has the lease or the sweep failed. It runs on the
	// goroutine of Run or Sweep and delays Run's next sweep. If Run and Sweep are
	// called concurrently, calls of OnSweep may be concurrent too. Default: nil.
	OnSweep func(Removed)
}

// complete returns a copy of c with defaults for zero fields; c may be nil.
func (c *Config) complete() (Config, error) {
	var full Config
	if c != nil {
		full = *c
	}
	full.BatchSize = cmp.Or(full.BatchSize, defaultBatchSize)
	if full.BatchSize < 1 || full.BatchSize > maxBatchSize {
		return full, store.Invalid("janitor.Config.BatchSize", fmt.Sprint(full.BatchSize), fmt.Sprintf("must be from 1 to %d, or 0 for %d", maxBatchSize, defaultBatchSize))
	}
	full.Interval = cmp.Or(full.Interval, defaultInterval)
	for _, f := range []struct {
		name                 string
		value                *time.Duration
		least, most, usually time.Duration
	}{
		{"Interval", &full.Interval, minInterval, maxInterval, defaultInterval},
		{"Lease", &full.Lease, minLease, maxLease, max(leaseIntervals*full.Interval, leastLease)},
		{"KeepDenials", &full.KeepDenials, minKeepDenials, maxKeepDenials, defaultKeepDenials},
	} {
		*f.value = cmp.Or(*f.value, f.usually)
		if *f.value < f.least || *f.value > f.most {
			return full, store.Invalid("janitor.Config."+f.name, f.value.String(), fmt.Sprintf("must be from %v to %v, or 0 for %v", f.least, f.most, f.usually))
		}
	}
	if full.Logger == nil {
		full.Logger = slog.Default()
	}
	return full, nil
}
