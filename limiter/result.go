package limiter

import (
	"encoding/json"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Never is the RetryAfter of an ask that can never fit, because its cost is
// above the burst. It is the largest Duration; in JSON it is null.
const Never time.Duration = math.MaxInt64

// Reason tells why an ask was denied.
type Reason string

const (
	// ReasonLimit: the limit leaves too little room. Waiting helps, unless
	// RetryAfter is Never.
	ReasonLimit Reason = "limit"
	// ReasonBlocked: the key is blocked, by Block or by Policy.BlockFor.
	ReasonBlocked Reason = "blocked"
	// ReasonOverload: too many callers wait for the database already. It comes
	// with ErrOverloaded.
	ReasonOverload Reason = "overload"
)

// Source tells where a decision was made.
type Source string

const (
	// SourceDatabase: by a statement in the database.
	SourceDatabase Source = "database"
	// SourceMemory: by a limiter made with NewMemory.
	SourceMemory Source = "memory"
	// SourceCache: by this process, from a denial that the database gave it
	// less than Config.DenyCacheTTL ago. Level, Remaining and Full are as of
	// that denial. RetryAfter, ResetAfter and At have moved on with the time;
	// they are late by as long as the database's answer was on its way, and
	// never early.
	SourceCache Source = "cache"
	// SourceDegraded: nowhere; the database could not be asked and the policy
	// is FailOpen. Nothing was counted, and Level, Remaining and ResetAfter say
	// nothing.
	SourceDegraded Source = "degraded"
)

// Result is the answer to one ask, as of that very decision. A denial is a
// Result, not an error.
type Result struct {
	// Allowed is true when the ask may go on: everything asked for was
	// granted, or for AllowUpTo some of it. Fill and Refund are always
	// Allowed; for Check it is what Do would answer.
	Allowed bool
	// Granted is how many units were granted: the cost, for AllowUpTo what
	// fitted, for Fill what went in, for Refund what was given back, for Check
	// what would be granted.
	Granted float64
	// Limit is the policy's Limit, in units per period.
	Limit float64
	// Burst is the policy's capacity in units.
	Burst float64
	// Remaining is how many units could be granted right after this decision,
	// and 0 while blocked. It may be fractional.
	Remaining float64
	// Level is what is in use after this decision: units in the bucket, burst
	// less the tokens left, or the window's count.
	Level float64
	// RetryAfter is how long to wait, from At, until what was not granted
	// could be: the ask; for AllowUpTo one unit more, or the rest if that is
	// less. 0 when all was granted; Never when it can never be.
	RetryAfter time.Duration
	// ResetAfter is how long from At until the key is as if it had never been
	// used, if nobody uses it.
	ResetAfter time.Duration
	// Delay is how long from At until one's turn, for LeakyBucketQueue; else 0.
	Delay time.Duration
	// Full is true when no room is left.
	Full bool
	// Reason tells why Allowed is false; it is empty when it is true.
	Reason Reason
	// Replayed is true when nothing was decided, because this had been before:
	// under the same IdempotencyKey, or in the same Settle. The other fields
	// are those of that answer, for Settle as the key stands now.
	Replayed bool
	// Expired is true for a Settle that came after its hold had expired.
	Expired bool
	// Source tells where the decision was made. By SourceCache it is as of an
	// earlier denial.
	Source Source
	// At is the clock that decided, cut to the microsecond.
	At time.Time

	grant algorithm.Grant // for Undo
}

// resultJSON is a Result in JSON: times in seconds, null for never.
type resultJSON struct {
	Allowed    bool     `json:"allowed"`
	Granted    float64  `json:"granted"`
	Limit      float64  `json:"limit"`
	Burst      float64  `json:"burst"`
	Level      float64  `json:"level"`
	Remaining  float64  `json:"remaining"`
	RetryAfter *float64 `json:"retry_after_s"`
	ResetAfter *float64 `json:"reset_after_s"`
	Delay      *float64 `json:"delay_s"`
	Full       bool     `json:"full"`
	Reason     Reason   `json:"reason"`
	Source     Source   `json:"source"`
	Replayed   bool     `json:"replayed,omitempty"`
	Expired    bool     `json:"expired,omitempty"`
}

// MarshalJSON writes the names that the command shows too: durations in
// seconds, null for Never.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{
		Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst,
		Level: r.Level, Remaining: r.Remaining,
		RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(r.ResetAfter), Delay: seconds(r.Delay),
		Full: r.Full, Reason: r.Reason, Source: r.Source, Replayed: r.Replayed, Expired: r.Expired,
	})
}

func seconds(d time.Duration) *float64 {
	if d == Never {
		return nil
	}
	s := d.Seconds()
	return &s
}

// duration turns microseconds into a Duration; what does not fit is Never.
func duration(us int64) time.Duration {
	if us >= math.MaxInt64/int64(time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}
