package limiter

import (
	"encoding/json"
	"fmt"
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

// Results is the answer to the asks of one AllowAll.
type Results struct {
	// Allowed is true when every ask was granted; else none was.
	Allowed bool
	// Each has the answer to each ask, in the order of the asks. If the whole
	// was denied, Each[i].Allowed tells whether that ask would have fitted, and
	// Granted and Delay are 0. Level, Remaining, RetryAfter and ResetAfter are
	// as they stand after the answer.
	PerRequest []Result
	// Binding is the index of the ask that denied the whole; if several did,
	// that of the longest RetryAfter, and of equals the first. It is -1 if the
	// whole was allowed.
	DeniedBy int
}

// resultsJSON is Results in JSON.
type resultsJSON struct {
	Allowed    bool     `json:"allowed"`
	DeniedBy   *int     `json:"denied_by"`
	PerRequest []Result `json:"per_request"`
}

// MarshalJSON writes binding as null where it is -1, and each as Result does.
func (r Results) MarshalJSON() ([]byte, error) {
	t := resultsJSON{Allowed: r.Allowed, PerRequest: r.PerRequest}
	if r.DeniedBy >= 0 {
		t.DeniedBy = &r.DeniedBy
	}
	if t.PerRequest == nil {
		t.PerRequest = []Result{}
	}
	return json.Marshal(t)
}

// Hold is what Reserve set aside. It is a value: keep the ID, and any process may
// settle or cancel it.
type Reservation struct {
	// Result is the answer to the ask. If it is not Allowed there is no hold, and
	// the other fields are zero.
	Result Result
	// ID names the hold for Settle and Cancel. It is safe in logs and in a
	// database: the algorithm's name, a colon and 26 random characters.
	ID string
	// Expires is from when the hold, if it is still open, is given back.
	Expires time.Time
}

// holdJSON is a Hold in JSON.
type reservationJSON struct {
	ID      *string    `json:"id"`
	Expires *time.Time `json:"expires"`
	Result  Result     `json:"result"`
}

// MarshalJSON writes id and expires as null where there is no hold.
func (h Reservation) MarshalJSON() ([]byte, error) {
	t := reservationJSON{Result: h.Result}
	if h.ID != "" {
		t.ID, t.Expires = &h.ID, &h.Expires
	}
	return json.Marshal(t)
}

// Statement is how a key stands: what was spent, what is held and what is left.
type Usage struct {
	// Result is what Check at cost 0 answers: Level is Spent plus Held.
	Result Result
	// Spent is how many units are counted for good: of a window, in the present
	// one; of a bucket, what has not leaked yet.
	Spent float64
	// Held is how many units open holds have set aside. Of a bucket it is what they
	// were, at most Level: which units have leaked is not told apart.
	Reserved float64
	// Holds is how many open holds that is, those that have expired and were not
	// given back yet among them.
	Reservations int
	// Left is how many units could be granted now: Result.Remaining.
	Remaining float64
	// Ends is when the present window ends, for FixedWindow; zero if the key has
	// none and for the other algorithms.
	WindowEnds time.Time
}

// statementJSON is a Statement in JSON.
type usageJSON struct {
	Spent        float64    `json:"spent"`
	Reserved     float64    `json:"reserved"`
	Reservations int        `json:"reservations"`
	Remaining    float64    `json:"remaining"`
	Limit        float64    `json:"limit"`
	Burst        float64    `json:"burst"`
	WindowEnds   *time.Time `json:"window_ends"`
}

// MarshalJSON writes the names that the command shows too; ends is null where
// there is no window.
func (s Usage) MarshalJSON() ([]byte, error) {
	t := usageJSON{Spent: s.Spent, Reserved: s.Reserved, Reservations: s.Reservations, Remaining: s.Remaining, Limit: s.Result.Limit, Burst: s.Result.Burst}
	if !s.WindowEnds.IsZero() {
		t.WindowEnds = &s.WindowEnds
	}
	return json.Marshal(t)
}

// DeniedError is how Wait, which returns nothing else, says no.
type DeniedError struct{ Result Result }

// Error tells the reason and when to try again.
func (e *DeniedError) Error() string {
	if e.Result.RetryAfter == Never {
		return "pglimit: denied: the cost is above the burst"
	}
	return fmt.Sprintf("pglimit: denied (%s): retry after %v", e.Result.Reason, e.Result.RetryAfter)
}
