package limiter

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// FailMode tells what a decision is when the database cannot be asked.
type FailMode uint8

const (
	// FailClosed returns the error; it is the zero value.
	FailClosed FailMode = iota
	// FailOpen allows, with Result.Source SourceDegraded. Inside a transaction,
	// and for invalid input, it is FailClosed all the same.
	FailOpen
)

// Durability tells whether a decision can be lost when the database server
// crashes. It changes nothing of what a decision is.
type Durability uint8

const (
	// Durable loses nothing acknowledged, unless a failover loses it
	// (synchronous replication closes that); it is the zero value. A decision
	// waits until the database has written it to disk: where the database's
	// synchronous_commit is off the statement turns it on for itself, and
	// leaves every stronger setting as it is.
	Durable Durability = iota
	// Relaxed does not wait for the disk and is several times faster: the
	// statement turns synchronous_commit off for itself. When the server
	// crashes, what was counted in the last 3 times wal_writer_delay (0.6 s by
	// default) may be forgotten, and can then be granted once more.
	Relaxed
)

// Policy says how much is allowed. It is a plain value: compare it, copy it,
// keep it in a variable, or read it from JSON or YAML, where durations are
// strings such as "1m30s".
//
// A policy's identity is its Name. The same name with another Limit, Period or
// Burst carries on with what a key has used, clamped to the new Burst (so keys
// under one name can have different plans), leaking at the new rate since the
// last decision; with another Algorithm it starts afresh.
type Policy struct {
	// Name keeps the keys of one policy apart from those of others. It matches
	// ^[a-z0-9][a-z0-9_.-]{0,63}$ and has no default.
	Name string
	// Algorithm is one of the constants of that type. It has no default.
	Algorithm Algorithm
	// Limit is how many units pass per Period in the long run, from 1e-9 to
	// 2^53. It has no default.
	Limit float64
	// Period is the time that Limit is meant for: whole microseconds, up to a
	// hundred years. It has no default, and is 0 with a Calendar.
	Period time.Duration
	// Burst is the capacity: how many units pass at once when nothing was used
	// before, from 1e-9 to 2^53. 0 means Limit. The window algorithms have no
	// burst apart from Limit: there it is 0 or equal to Limit.
	Burst float64
	// Tick makes a LeakyBucket leak in whole steps, one every Tick, instead of
	// continuously. Whole microseconds; 0, the default, is continuous. For
	// LeakyBucket only.
	Tick time.Duration
	// Aligned makes windows start at whole multiples of Period since
	// 1970-01-01 UTC instead of at a key's first hit. For FixedWindow only; the
	// SlidingWindowCounter's windows always do.
	Aligned bool
	// Calendar makes windows the hours, days, weeks from Monday or months of a
	// calendar, instead of a Period and Aligned. For FixedWindow only; the empty
	// string, the default, is none. Which window it is the database's clock
	// tells; where windows end this program's time zone data does.
	Calendar Calendar
	// TimeZone is the zone of Calendar's local dates and hours: a name of the
	// IANA time zone database, such as "Europe/Vienna", but not "Local". The
	// empty string, the default, is UTC. Where the system may have no such
	// database, as in small container images, import _ "time/tzdata". For use
	// with Calendar only.
	TimeZone string
	// BlockFor denies a key for that long from a denial on that granted
	// nothing, whatever it holds: whole microseconds up to a hundred years; 0,
	// the default, does not block. A denial while blocked does not prolong it.
	BlockFor time.Duration
	// Durability tells whether a crash of the server may forget the last
	// decisions. The zero value is Durable. Inside the caller's transaction it
	// does not apply: there the caller's settings do.
	Durability Durability
	// OnError is what a decision is when the database cannot be asked. The
	// zero value is FailClosed.
	OnError FailMode
}

// Ask is one question: may Key use Cost units under Policy?
type Request struct {
	Policy Policy
	// Key is whom the limit is for: 1 to 1,024 bytes of UTF-8 without NUL. See
	// the function Key for joining several parts.
	Key string
	// Cost is how many units are asked for: from a billionth of the policy's
	// burst, or 1 if that is less, to 2^53. It has no default: 0 is valid for
	// Check alone.
	Cost float64
	// IdempotencyKey, if not empty, makes Do and Reserve count the ask once
	// however often it is asked: the admission is remembered under this key,
	// apart for each policy and Key, for Config.IdempotencyTTL, and given again
	// with Result.Replayed. A denial is not remembered. The same key with
	// another Cost is an ErrInvalid. Up to 255 bytes of UTF-8 without NUL, such
	// as an order's number. AllowAll and DoWait give ErrUnsupported. Such an ask
	// shares no statement with others.
	IdempotencyKey string
}

// Ask returns an Ask of cost units for key under p.
func (p Policy) Request(key string, cost float64) Request {
	return Request{Policy: p, Key: key, Cost: cost}
}

// burst is Burst with its default.
func (p Policy) burst() float64 {
	if p.Burst == 0 {
		return p.Limit
	}
	return p.Burst
}

// Algorithm names how a [Policy] decides. Its value is the name used in SQL,
// JSON, YAML, flags and docs.
type Algorithm string

const (
	// LeakyBucket is the leaky bucket as a meter (policing): a bucket of Burst
	// units that leaks Limit units per Period; an ask that would overflow it is
	// denied. With Policy.Tick it leaks in whole steps.
	LeakyBucket = Algorithm(algorithm.LeakyBucket)
	// LeakyBucketQueue is the leaky bucket as a queue (shaping): up to Burst
	// units wait in it and leave at the even pace of Limit per Period;
	// Result.Delay is the wait for one's turn, and Wait sleeps it.
	LeakyBucketQueue = Algorithm(algorithm.LeakyBucketQueue)
	// TokenBucket holds up to Burst tokens; Limit tokens per Period come back.
	TokenBucket = Algorithm(algorithm.TokenBucket)
	// GCRA is the generic cell rate algorithm of ITU-T I.371. It decides as
	// TokenBucket does and is known from networks and from Redis.
	GCRA = Algorithm(algorithm.GCRA)
	// FixedWindow counts up to Limit units in a window of one Period, which
	// starts at the first hit or, with Policy.Aligned, on the clock. Twice the
	// limit can pass around the edge of two windows.
	FixedWindow = Algorithm(algorithm.FixedWindow)
	// SlidingWindowCounter counts in windows of one Period on the clock and
	// weighs the one before by how much of it the last Period still covers:
	// nearly the sliding log at the price of two numbers.
	SlidingWindowCounter = Algorithm(algorithm.SlidingWindowCounter)
	// SlidingWindowLog keeps each decision of the last Period: at most Limit
	// units in any window of one Period, exactly. Its row grows with the
	// number of decisions in a period; above about 1,000 prefer
	// SlidingWindowCounter.
	SlidingWindowLog = Algorithm(algorithm.SlidingWindowLog)
)

// Algorithms returns every algorithm, in a fixed order.
func Algorithms() []Algorithm {
	all := make([]Algorithm, len(algorithm.Names))
	for i, n := range algorithm.Names {
		all[i] = Algorithm(n)
	}
	return all
}

func (a Algorithm) known() bool { return algorithm.Name(a).Index() >= 0 }

// bucket reports whether the algorithm leaks; the others count in windows.
func (a Algorithm) bucket() bool { return algorithm.Name(a).Family() == algorithm.Buckets }

// Calendar makes a FixedWindow's windows the periods of a calendar, in
// Policy.TimeZone. Its value is the name used in JSON, YAML, flags and docs; the
// empty string is no calendar.
//
// Every moment is in exactly one period. One ends where the next begins: at the
// first moment whose local date is the first day of the next period, or later.
// So a day is 23 or 25 hours long where clocks are set, a midnight that does not
// occur is the moment when it would have, and one that occurs twice ends the day
// once.
type Calendar string

const (
	// Hour ends at each whole hour of the local clock and where that clock is
	// set: an hour that occurs twice is two periods, and one of which half is
	// left out is short.
	Hour = Calendar(algorithm.Hour)
	// Day is a local date.
	Day = Calendar(algorithm.Day)
	// Week is seven local dates, from Monday.
	Week = Calendar(algorithm.Week)
	// Month is a month of the local dates.
	Month = Calendar(algorithm.Month)
)

// Calendars returns every calendar, in a fixed order.
func Calendars() []Calendar { return []Calendar{Hour, Day, Week, Month} }

func (c Calendar) known() bool { return algorithm.Unit(c).Longest() != 0 }

// Key joins parts into one key so that different parts never give the same
// key: Key("a:b", "c") differs from Key("a", "b:c"). Parts are separated by
// colons; a colon or backslash inside a part is escaped by a backslash. One
// part without either is its own key.
func JoinKey(parts ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `:`, `\:`)
	escaped := make([]string, len(parts))
	for i, p := range parts {
		escaped[i] = escape.Replace(p)
	}
	return strings.Join(escaped, ":")
}

// PolicyError names the field of a Policy that is wrong. It is an ErrInvalid.
type PolicyError struct {
	Field  string // the field's name in Go
	Value  any    // what it holds
	Reason string // what it should hold
}

// Error names field, value and what is expected.
func (e *PolicyError) Error() string {
	if s, ok := e.Value.(string); ok {
		return fmt.Sprintf("pglimit: invalid policy: %s %s: %s", e.Field, store.Quote(s), e.Reason)
	}
	return fmt.Sprintf("pglimit: invalid policy: %s %v: %s", e.Field, e.Value, e.Reason)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *PolicyError) Is(target error) bool { return target == store.ErrInvalid }

func (p Policy) bad(field string, value any, reason string) error {
	return &PolicyError{Field: field, Value: value, Reason: reason}
}

// newRules compiles a valid policy.
func newRules(p *Policy) algorithm.Rules {
	r := algorithm.Rules{
		Burst:    p.burst(),
		Tick:     1,
		Period:   p.Period.Microseconds(),
		Aligned:  p.Aligned,
		BlockFor: p.BlockFor.Microseconds(),
	}
	// The slack is too small to ever let one whole unit more pass.
	r.Capacity = r.Burst + min(1e-6, 1e-9*r.Burst)
	if p.Tick > 0 {
		r.Tick = p.Tick.Microseconds()
	}
	switch {
	case p.Algorithm.bucket():
		r.Leak = float64(p.Limit*float64(r.Tick)) / float64(r.Period)
		r.Lifetime = r.Drain(r.Capacity)
	case p.Algorithm == SlidingWindowCounter:
		r.Lifetime = 2 * r.Period
	case p.Calendar != "":
		r.Calendar, _ = algorithm.CalendarOf(algorithm.Unit(p.Calendar), p.TimeZone)
		r.Lifetime = algorithm.Unit(p.Calendar).Longest()
	default:
		r.Lifetime = r.Period
	}
	r.Lifetime = min(max(r.Lifetime, r.BlockFor), algorithm.MaxLifetime)
	return r
}
