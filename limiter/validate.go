package limiter

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/valid"
)

// minShare is the least Policy.LocalShare.
const minShare = 1e-6

// Validate returns nil if p is valid, else a *PolicyError for the first field that is
// not. Every method that takes a policy validates it.
func (p Policy) Validate() error {
	switch {
	case !valid.Name(p.Name):
		return p.bad("Name", p.Name, "must match "+valid.NameHelp)
	case !p.Algorithm.known():
		return p.bad("Algorithm", string(p.Algorithm), fmt.Sprintf("must be one of %v", algorithm.All()))
	case p.Ledger && p.Algorithm != Balance:
		return p.bad("Ledger", p.Ledger, "is for balance only: leave it false")
	case p.Overdraft != 0 && p.Algorithm != Balance:
		return p.bad("Overdraft", p.Overdraft, "is for balance only: leave it 0")
	case p.Overdraft != 0 && !valid.Units(p.Overdraft):
		return p.bad("Overdraft", p.Overdraft, "must be from 1e-9 to 2^53, or 0 for none")
	case p.Algorithm != Balance && !valid.Units(p.Limit):
		return p.bad("Limit", p.Limit, "must be from 1e-9 to 2^53")
	case p.Burst != 0 && !valid.Units(p.Burst):
		return p.bad("Burst", p.Burst, "must be from 1e-9 to 2^53, or 0 for Limit")
	case p.Burst != 0 && p.Burst != p.Limit && p.Algorithm != Balance && !p.Algorithm.bucket() && p.Algorithm != Attempts:
		return p.bad("Burst", p.Burst, fmt.Sprintf("%s has no burst apart from Limit: leave it 0", p.Algorithm))
	case p.OnError > FailLocal:
		return p.bad("OnError", int(p.OnError), "must be FailClosed, FailOpen or FailLocal")
	case p.LocalShare != 0 && p.OnError != FailLocal:
		return p.bad("LocalShare", p.LocalShare, "is for FailLocal only: leave it 0")
	case p.LocalShare != 0 && !(p.LocalShare >= minShare && p.LocalShare <= 1):
		return p.bad("LocalShare", p.LocalShare, "must be from 1e-6 to 1, or 0 for 0.1")
	case p.Durability != Durable && p.Durability != Relaxed:
		return p.bad("Durability", int(p.Durability), "must be Durable or Relaxed")
	}
	if err := p.validateCalendar(); err != nil {
		return err
	}
	if p.Period <= 0 && p.Calendar == "" && p.Algorithm != Balance {
		return p.bad("Period", p.Period, "must be positive")
	}
	for _, d := range [...]struct {
		field string
		value time.Duration
	}{{"Period", p.Period}, {"Tick", p.Tick}, {"BlockFor", p.BlockFor}, {"BlockMax", p.BlockMax}} {
		if reason := valid.Duration(d.value); reason != "" {
			return p.bad(d.field, d.value, reason)
		}
	}
	switch {
	case p.Tick != 0 && p.Algorithm != LeakyBucket:
		return p.bad("Tick", p.Tick, "is for leaky_bucket only")
	case p.Aligned && p.Algorithm != FixedWindow:
		return p.bad("Aligned", p.Aligned, "is for fixed_window only")
	}
	for _, validate := range [...]func(Policy) error{Policy.validateBalance, Policy.validateAttempts, Policy.validateSlots, Policy.validateLease, Policy.validateMarks, Policy.validateUsage, Policy.validateKeys} {
		if err := validate(p); err != nil {
			return err
		}
	}
	return nil
}

// maxMaxKeys is the largest Policy.MaxKeys.
const maxMaxKeys = 1_000_000_000

func (p Policy) validateKeys() error {
	switch rest := p.rest(); {
	case p.MaxKeys < 0 || p.MaxKeys > maxMaxKeys:
		return p.bad("MaxKeys", p.MaxKeys, "must be from 1 to 1e9, or 0 for no bound")
	case p.MaxKeys != 0 && p.Algorithm.unmetered():
		return p.bad("MaxKeys", p.MaxKeys, fmt.Sprintf("is not for %s: leave it 0", p.Algorithm))
	case p.RestLimit == 0:
		return nil
	case p.MaxKeys == 0:
		return p.bad("RestLimit", p.RestLimit, "is for policies with MaxKeys: leave it 0")
	case !valid.Units(p.RestLimit):
		return p.bad("RestLimit", p.RestLimit, "must be from 1e-9 to 2^53, or 0 for none")
	case rest.Burst != 0 && !valid.Units(rest.Burst):
		return p.bad("RestLimit", p.RestLimit, "makes a Burst of "+printable.Number(rest.Burst)+", which must be from 1e-9 to 2^53")
	}
	return nil
}

// maxGrowth is the largest Policy.BlockGrowth, and maxAtOnce the largest Burst of Attempts.
const maxGrowth, maxAtOnce = 1000, 100

func (p Policy) validateAttempts() error {
	if p.Algorithm != Attempts {
		switch {
		case p.BlockGrowth != 0:
			return p.bad("BlockGrowth", p.BlockGrowth, "is for attempts only: leave it 0")
		case p.BlockMax != 0:
			return p.bad("BlockMax", p.BlockMax, "is for attempts only: leave it 0")
		}
		return nil
	}
	switch {
	case p.Limit < 1 || p.Limit != math.Trunc(p.Limit):
		return p.bad("Limit", p.Limit, "must be whole and at least 1: the failures from which on each makes a wait")
	case p.burst() < 1 || p.burst() > maxAtOnce || p.burst() != math.Trunc(p.burst()):
		return p.bad("Burst", p.Burst, "must be whole, from 1 to 100, or 0 for 1: the attempts under way at once")
	case p.BlockFor == 0:
		return p.bad("BlockFor", p.BlockFor, "must be positive: the first wait")
	case p.BlockGrowth != 0 && !(p.BlockGrowth >= 1 && p.BlockGrowth <= maxGrowth):
		return p.bad("BlockGrowth", p.BlockGrowth, "must be from 1 to 1000, or 0 for 2")
	case p.BlockMax != 0 && p.BlockMax < p.BlockFor:
		return p.bad("BlockMax", p.BlockMax, "must be at least BlockFor, or 0 for Period")
	case p.BlockMax == 0 && p.Period < p.BlockFor:
		return p.bad("BlockMax", p.BlockMax, "is Period by default, which is less than BlockFor: set it")
	case p.OnError != FailClosed:
		return p.bad("OnError", p.OnError, "must be FailClosed: attempts are not begun without the database")
	}
	return nil
}

func (p Policy) validateSlots() error {
	switch {
	case p.Algorithm != Concurrency:
		return nil
	case p.Limit < 1 || p.Limit != math.Trunc(p.Limit):
		return p.bad("Limit", p.Limit, "must be whole and at least 1: the units held at once")
	case p.Period < store.MinTTL:
		return p.bad("Period", p.Period, "must be at least 1s: how long a slot is held that is not renewed")
	case p.BlockFor != 0:
		return p.bad("BlockFor", p.BlockFor, "is not for concurrency: leave it 0")
	case p.OnError != FailClosed:
		return p.bad("OnError", p.OnError, "must be FailClosed: slots are not held without the database")
	}
	return nil
}

func (p Policy) validateLease() error {
	switch {
	case p.Lease == 0:
		return nil
	case !(p.Lease > 0 && p.Lease <= 0.5):
		return p.bad("Lease", p.Lease, "must be from 0 to 0.5")
	case p.Algorithm == LeakyBucketQueue, p.Algorithm == SlidingWindowLog, p.Algorithm.unmetered():
		return p.bad("Lease", p.Lease, fmt.Sprintf("%s has no leases: leave it 0", p.Algorithm))
	}
	return nil
}

func (p Policy) validateCalendar() error {
	switch {
	case p.Calendar == "" && p.TimeZone != "":
		return p.bad("TimeZone", p.TimeZone, "requires a Calendar")
	case p.Calendar == "" && p.Anchor != "":
		return p.bad("Anchor", p.Anchor, "requires a Calendar")
	case p.Calendar == "":
		return nil
	case !p.Calendar.known():
		return p.bad("Calendar", string(p.Calendar), "must be hour, day, week, month, quarter or year, or empty for none")
	case p.Algorithm != FixedWindow:
		return p.bad("Calendar", string(p.Calendar), "is for fixed_window only")
	case p.Period != 0:
		return p.bad("Period", p.Period, "must be 0 with Calendar")
	case p.Aligned:
		return p.bad("Aligned", p.Aligned, "must be false with Calendar")
	}
	_, err := p.calendar()
	return err
}

// maxRequests is the largest number of requests of one AllowAll.
const maxRequests = 1000

// maxIdempotencyKey is the longest IdempotencyKey in bytes.
const maxIdempotencyKey = 255

// validateVerb returns an error for a call that the algorithm of its policy does not serve.
func validateVerb(v *verb, in *Request) error {
	switch queue := in.Policy.Algorithm == LeakyBucketQueue; {
	case v == verbRefund && queue:
		return fmt.Errorf("%w: Refund on %s: units in a queue go back when their Wait is cancelled", store.ErrUnsupported, LeakyBucketQueue)
	case v.kind == store.Reserve && queue:
		return fmt.Errorf("%w: Reserve on %s: units in a queue are not given back", store.ErrUnsupported, LeakyBucketQueue)
	case v.pools && queue:
		return fmt.Errorf("%w: AllowAny on %s: a turn comes from one queue", store.ErrUnsupported, LeakyBucketQueue)
	case v == verbWait && !queue:
		return fmt.Errorf("%w: Wait on %s: only %s has turns; use Allow and RetryAfter", store.ErrUnsupported, in.Policy.Algorithm, LeakyBucketQueue)
	}
	return validateBalanceVerb(v, in)
}

// validateCost validates a cost. readable allows 0.
func validateCost(readable bool, cost, burst float64) error {
	reason := ""
	switch {
	case cost == 0 && readable:
		return nil
	case cost == 0:
		reason = "must be positive; Check at cost 0 reads without consuming"
	case !(cost > 0) || cost > valid.MaxUnits:
		reason = "must be positive and at most 2^53"
	case cost < leastCost(burst):
		reason = fmt.Sprintf("must be at least %v, a billionth of the burst", leastCost(burst))
	default:
		return nil
	}
	return store.Invalid("cost", strconv.FormatFloat(cost, 'g', -1, 64), reason)
}

// leastCost returns the smallest cost: a billionth of the burst, which rounding cannot
// lose. Above a billion, whole units are still exact.
func leastCost(burst float64) float64 { return min(1, 1e-9*burst) }

// millionths returns a Request's Floor as a store.Query has it.
func millionths(floor float64) (int64, error) {
	if floor == 0 {
		return 0, nil
	}
	n := math.RoundToEven(floor * 1e6)
	if !(floor >= 0 && n < 1e6) {
		return 0, store.Invalid("Floor", strconv.FormatFloat(floor, 'g', -1, 64), "must be from 0 to 0.999999, the share of the burst that stays free")
	}
	return int64(n), nil
}

// PolicyError reports the first field of a Policy that is not valid. It is an ErrInvalid.
type PolicyError struct {
	Field  string // the field's name in Go
	Value  any    // the field's value
	Reason string // the requirement that it fails
}

// Error names the field, its value and the requirement.
func (e *PolicyError) Error() string {
	value := fmt.Sprint(e.Value)
	switch v := e.Value.(type) {
	case string:
		value = store.Quote(v)
	case float64:
		value = printable.Number(v)
	case time.Duration:
		value = durations.Format(v)
	}
	return fmt.Sprintf("pglimit: invalid policy: %s %s: %s", e.Field, value, e.Reason)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *PolicyError) Is(target error) bool { return target == store.ErrInvalid }

func (p Policy) bad(field string, value any, reason string) error {
	return &PolicyError{Field: field, Value: value, Reason: reason}
}
