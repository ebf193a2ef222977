package limiter

import (
	"fmt"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Bounds of a policy's numbers.
const (
	maxUnits    = algorithm.MaxUnits
	minUnits    = 1e-9 // of Limit and Burst
	maxDuration = time.Duration(algorithm.MaxLifetime) * time.Microsecond
	nameHelp    = `^[a-z0-9][a-z0-9_.-]{0,63}$` // what a policy's name looks like
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
type Ask struct {
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
func (p Policy) Ask(key string, cost float64) Ask {
	return Ask{Policy: p, Key: key, Cost: cost}
}

// Validate returns nil if decisions can be made by p, else a *PolicyError for
// the first field that is wrong. Every verb validates by itself.
func (p Policy) Validate() error {
	switch {
	case !validName(p.Name):
		return p.bad("Name", p.Name, "must match "+nameHelp)
	case !p.Algorithm.known():
		return p.bad("Algorithm", string(p.Algorithm), fmt.Sprintf("must be one of %v", algorithms))
	case !validUnits(p.Limit):
		return p.bad("Limit", p.Limit, "must be from 1e-9 to 2^53")
	case p.Burst != 0 && !validUnits(p.Burst):
		return p.bad("Burst", p.Burst, "must be from 1e-9 to 2^53, or 0 for Limit")
	case p.Burst != 0 && p.Burst != p.Limit && !p.Algorithm.bucket():
		return p.bad("Burst", p.Burst, fmt.Sprintf("%s has no burst apart from Limit: leave it 0", p.Algorithm))
	case p.OnError != FailClosed && p.OnError != FailOpen:
		return p.bad("OnError", int(p.OnError), "must be FailClosed or FailOpen")
	case p.Durability != Durable && p.Durability != Relaxed:
		return p.bad("Durability", int(p.Durability), "must be Durable or Relaxed")
	}
	if err := p.validateCalendar(); err != nil {
		return err
	}
	if p.Period <= 0 && p.Calendar == "" {
		return p.bad("Period", p.Period, "must be positive")
	}
	for _, d := range [...]struct {
		field string
		value time.Duration
	}{{"Period", p.Period}, {"Tick", p.Tick}, {"BlockFor", p.BlockFor}} {
		if reason := badDuration(d.value); reason != "" {
			return p.bad(d.field, d.value, reason)
		}
	}
	switch {
	case p.Tick != 0 && p.Algorithm != LeakyBucket:
		return p.bad("Tick", p.Tick, "is for leaky_bucket only")
	case p.Aligned && p.Algorithm != FixedWindow:
		return p.bad("Aligned", p.Aligned, "is for fixed_window only")
	}
	return nil
}

func (p Policy) validateCalendar() error {
	switch {
	case p.Calendar == "" && p.TimeZone != "":
		return p.bad("TimeZone", p.TimeZone, "is for Calendar, and that is empty")
	case p.Calendar == "":
		return nil
	case !p.Calendar.known():
		return p.bad("Calendar", string(p.Calendar), "must be hour, day, week or month, or empty for none")
	case p.Algorithm != FixedWindow:
		return p.bad("Calendar", string(p.Calendar), "is for fixed_window only")
	case p.Period != 0:
		return p.bad("Period", p.Period, "must be 0 with Calendar")
	case p.Aligned:
		return p.bad("Aligned", p.Aligned, "must be false with Calendar")
	}
	if reason := badTimeZone(p.Calendar, p.TimeZone); reason != "" {
		return p.bad("TimeZone", p.TimeZone, reason)
	}
	return nil
}

func (p Policy) bad(field string, value any, reason string) error {
	return &PolicyError{Field: field, Value: value, Reason: reason}
}

func badDuration(d time.Duration) string {
	switch {
	case d < 0:
		return "must not be negative"
	case d > maxDuration:
		return "must be at most a hundred years"
	case d%time.Microsecond != 0:
		return "must be whole microseconds"
	}
	return ""
}

// validUnits is false for NaN too.
func validUnits(v float64) bool { return v >= minUnits && v <= maxUnits && !math.IsInf(v, 0) }

func validName(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// burst is Burst with its default.
func (p Policy) burst() float64 {
	if p.Burst == 0 {
		return p.Limit
	}
	return p.Burst
}
