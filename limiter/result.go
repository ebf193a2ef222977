package limiter

import (
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	durations "github.com/pglimit/pglimit/internal/duration"
)

// Never is the RetryAfter of a request that can never be granted: its cost is above the burst
// or above what its Floor leaves of that, or an override blocks its key without an end. It is
// the largest Duration. In JSON it is null.
const Never time.Duration = math.MaxInt64

// Reason is the cause of a denial.
type Reason string

const (
	// ReasonLimit: the limit leaves too little room. Waiting helps, unless RetryAfter is
	// Never. For Attempts: as many attempts as may be are under way.
	ReasonLimit Reason = "limit"
	// ReasonBlocked: the key is blocked, by Block, by Policy.BlockFor or by an override. For
	// Attempts: the key waits after failures, or is blocked.
	ReasonBlocked Reason = "blocked"
	// ReasonKeys: the key has no row, and Policy.MaxKeys other keys have one. RetryAfter is
	// always a minute: when the janitor will make room is not known. Level and Remaining are 0.
	// A Charge of such a key is Allowed and records nothing.
	ReasonKeys Reason = "keys"
	// ReasonOverload: too many callers are waiting for the database, or a NewMemory is
	// full. It comes with ErrOverloaded.
	ReasonOverload Reason = "overload"
)

// Source is where a decision was made.
type Source string

const (
	// SourceDatabase: by a statement in the database.
	SourceDatabase Source = "database"
	// SourceMemory: by a limiter made with NewMemory.
	SourceMemory Source = "memory"
	// SourceCache: by this process, from a denial that the database returned less than
	// Config.DenyCacheTTL ago. Level, Remaining and Full are as of that denial.
	// RetryAfter, ResetAfter and At are adjusted for the time since. They are never
	// early, and late by at most the time that the database's answer took.
	SourceCache Source = "cache"
	// SourceLease: by this process, from units that it had taken from the key's row: see
	// Policy.Lease. Level and Remaining are as of that statement, less what this process used
	// since, and At and ResetAfter are adjusted for the time since. Undo gives the units back to
	// the lease, or nothing if that has ended.
	SourceLease Source = "lease"
	// SourceSkipped: nowhere. Another request of the AllowAll denied the whole: by a
	// remembered denial, or the policy of this one is a shadow. Or one before it in an AllowAny
	// gave all. Allowed is false, Reason is
	// empty, and Level, Remaining, RetryAfter and ResetAfter have no meaning. It is also the
	// Source of a Settle or Failed whose ID begins with uncounted. That is Allowed.
	SourceSkipped Source = "skipped"
	// SourceDegraded: nowhere, or in this process's memory if the policy is FailLocal. The
	// database could not decide. If the policy is FailOpen or a shadow, nothing was counted,
	// and Level, Remaining and ResetAfter have no meaning.
	SourceDegraded Source = "degraded"
	// SourceOverride: nowhere. An override makes the key Unlimited or Blocked. Nothing was
	// counted. If it is Unlimited, Remaining is the burst, and Level and ResetAfter are 0. If it
	// is Blocked, RetryAfter and ResetAfter last until the override ends; Never without an end.
	SourceOverride Source = "override"
)

// Result is the answer to one request, as of the moment of its decision. A denial is a
// Result, not an error.
type Result struct {
	// Allowed reports whether all requested units were granted; for AllowUpTo and
	// ReserveUpTo, whether any were. Charge, Refund, Undo, Settle and Failed are always
	// Allowed. Check returns what Do or Attempt would.
	Allowed bool
	// Granted is the number of units granted, charged or given back; for Check, the
	// number that would be granted. It is 1 for an Attempt that was allowed, and 0 for Failed.
	Granted float64
	// Policy is the policy that decided: the request's, with the override of its key applied.
	// For Settle and Failed it has only the Name and, if anything was counted, the Algorithm.
	Policy Policy
	// Limit is the policy's Limit, in units per period, with the override of the key applied.
	// For Attempts it is a number of failures: see [Limiter.Attempt], also for Remaining.
	Limit float64
	// Burst is the policy's capacity in units, with the override of the key applied, and without
	// what Policy.Lease sets apart. For Attempts it is how many may be under way at once.
	Burst float64
	// Remaining is the number of units that could be granted right after this decision. It
	// is 0 while the key is blocked. If the cost and Burst are whole, it is rounded down to
	// whole units; Level is not.
	Remaining float64
	// Level is the number of units in use after this decision: the units in a bucket, the
	// burst less the tokens left, or a window's count. For Attempts it is the failures that
	// count.
	Level float64
	// RetryAfter is the time from At until the denied request could be granted. For
	// AllowUpTo and ReserveUpTo it is the time until one more unit, or the rest if that is
	// less, could be granted. For Failed it is the rest of the wait. It is 0 if all was granted
	// and Never if it never can be.
	RetryAfter time.Duration
	// ResetAfter is the time from At until the key is empty and not blocked, if it gets
	// no further requests.
	ResetAfter time.Duration
	// Delay is the time from At until the request's turn, for LeakyBucketQueue; else 0. A
	// Wait of a shadow policy does not sleep for it. Callers of Do should not either.
	Delay time.Duration
	// Full reports whether no room is left. For Attempts it reports whether another attempt
	// would be denied.
	Full bool
	// Reason is the cause of a denial. It is empty if Allowed is true and Shadowed is not.
	Reason Reason
	// Replayed reports whether an earlier request with the same IdempotencyKey, or an
	// equal Settle, was decided before. Nothing new was counted. The other fields are
	// those of the earlier answer; for Settle they show the key as it is now.
	Replayed bool
	// Expired reports whether a Settle came after its reservation had expired.
	Expired bool
	// Shadowed reports whether a Policy.Shadow let pass what it would have denied. Allowed
	// is then true and Granted is what was requested. Nothing was counted, and Undo gives
	// nothing back. Reason, RetryAfter, Level and Remaining are those of the denial.
	//
	//   - An AllowUpTo or ReserveUpTo that would have been granted in part is Shadowed too.
	//     That part is counted, and Reason is empty.
	//   - A Wait that would only have slept is not Shadowed: its Delay is above 0.
	//   - If the database could not decide, Source is SourceDegraded and Reason is empty.
	Shadowed bool
	// Source is where the decision was made. For SourceCache it was an earlier denial.
	Source Source
	// At is the time of the decision by the clock that decided, truncated to
	// microseconds.
	At time.Time

	grant algorithm.Grant // for Undo
	block *block          // likewise, of SourceLease
	rows  int             // Observation.Rows, until that is made
}

// resultJSON is a Result in JSON: times in seconds, null for Never.
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
	Shadowed   bool     `json:"shadowed,omitempty"`
	ByShadow   bool     `json:"by_shadow,omitempty"` // Policy.Shadow
}

// MarshalJSON writes r with the names that the command prints, too: durations in seconds,
// null for Never.
func (r Result) MarshalJSON() ([]byte, error) {
	return json.Marshal(resultJSON{
		Allowed: r.Allowed, Granted: r.Granted, Limit: r.Limit, Burst: r.Burst,
		Level: r.Level, Remaining: r.Remaining,
		RetryAfter: seconds(r.RetryAfter), ResetAfter: seconds(r.ResetAfter), Delay: seconds(r.Delay),
		Full: r.Full, Reason: r.Reason, Source: r.Source, Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed, ByShadow: r.Policy.Shadow,
	})
}

func seconds(d time.Duration) *float64 {
	if d == Never {
		return nil
	}
	s := d.Seconds()
	return &s
}

// duration returns microseconds as a Duration, or Never if they do not fit.
func duration(us int64) time.Duration {
	if us >= math.MaxInt64/int64(time.Microsecond) {
		return Never
	}
	return time.Duration(us) * time.Microsecond
}

// Results is the answer to the requests of one AllowAll or WaitAll.
type Results struct {
	// Allowed reports whether every request was granted. If not, none was.
	Allowed bool
	// PerRequest has the answer to each request, in their order. If the whole was denied,
	// PerRequest[i].Allowed reports whether that request would have fitted, and Granted
	// and Delay are 0. Level, Remaining, RetryAfter and ResetAfter are as of after the
	// answer.
	PerRequest []Result
	// DeniedBy is the index of the request that denied the whole. If several did, it is
	// the one with the longest RetryAfter; of equal ones, the first. It is -1 if the
	// whole was allowed or an error was returned.
	DeniedBy int
}

// blame sets DeniedBy.
func (all *Results) blame() {
	for i, r := range all.PerRequest {
		if !r.Allowed && r.Source != SourceSkipped && (all.DeniedBy < 0 || r.RetryAfter > all.PerRequest[all.DeniedBy].RetryAfter) {
			all.DeniedBy = i
		}
	}
}

// resultsJSON is Results in JSON.
type resultsJSON struct {
	Allowed    bool     `json:"allowed"`
	DeniedBy   *int     `json:"denied_by"`
	PerRequest []Result `json:"per_request"`
}

// MarshalJSON writes denied_by as null if it is -1, and per_request as Result does.
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

// Reservation is the result of a Reserve or ReserveUpTo. It is a value: any process that knows the ID
// may settle or cancel it.
type Reservation struct {
	// Result is the answer to the request. If it is not Allowed, there is no reservation
	// and the other fields are zero.
	Result Result
	// ID names the reservation for Settle and Cancel: algorithm:random:policy:key, where
	// random is 26 characters and the key is in base64url. The algorithm is "uncounted" for
	// an unlimited key: see SourceOverride. The ID has at most 1,487
	// characters, all of them A-Z, a-z, 0-9, '_', '-', '.' or ':'. Whoever knows it can end
	// the reservation. Anyone can read the key in it, unless Config.KeySecret is set: then
	// it has the key's HMAC and at most 179 characters. If Result is Shadowed, it begins with
	// uncounted instead of the algorithm, and Settle and Cancel change nothing.
	ID string
	// ExpiresAt is when the reservation ends if it was neither settled nor cancelled. Its
	// units are then given back.
	ExpiresAt time.Time
}

// Reservations is the result of a ReserveAll.
type Reservations struct {
	// Results has the answers to the requests. If they are not Allowed, nothing is reserved and
	// the other fields are zero.
	Results Results `json:"results"`
	// IDs has the ID of each request's reservation, in their order, for SettleAll and CancelAll, or
	// for Settle and Cancel of one: see Reservation.ID.
	IDs []string `json:"ids"`
	// ExpiresAt is when the first of them ends if it was neither settled nor cancelled.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// reservationJSON is a Reservation in JSON.
type reservationJSON struct {
	ID        *string    `json:"id"`
	ExpiresAt *time.Time `json:"expires_at"`
	Result    Result     `json:"result"`
}

// MarshalJSON writes id and expires_at as null if there is no reservation.
func (r Reservation) MarshalJSON() ([]byte, error) {
	t := reservationJSON{Result: r.Result}
	if r.ID != "" {
		t.ID, t.ExpiresAt = &r.ID, &r.ExpiresAt
	}
	return json.Marshal(t)
}

// Usage is the state of a key: what was spent, is reserved and remains.
type Usage struct {
	// Result is what Check at cost 0 returns. Its Level is Spent plus Reserved, of a Balance the
	// Debt. Its Remaining is the number of units that could be granted now.
	Result Result
	// Spent is the number of units counted for good: for a window, in the current one;
	// for a bucket, those that have not leaked yet.
	Spent float64
	// Reserved is the number of units in open reservations. For a bucket it is the number
	// reserved, at most Level: the leak does not distinguish units.
	Reserved float64
	// Reservations is the number of open reservations. It includes those that have
	// expired and were not given back yet.
	Reservations int
	// WindowEndsAt is the end of the current window of a FixedWindow. It is zero if the key
	// has none and for other algorithms.
	WindowEndsAt time.Time
	// Granted, Expired and Debt are those of a Balance, since its last Reset: the units that
	// were granted, those that were lost when their lot expired, and those that were spent and
	// are owed. Granted plus Debt is Spent plus Reserved plus Expired plus the units of Lots.
	// They are 0 for other algorithms.
	Granted, Expired, Debt float64
	// Lots is what a Balance has left, in the order in which it is spent. It is nil for other
	// algorithms.
	Lots []Lot
}

// usageJSON is a Usage in JSON.
type usageJSON struct {
	Spent        float64    `json:"spent"`
	Reserved     float64    `json:"reserved"`
	Reservations int        `json:"reservations"`
	Remaining    float64    `json:"remaining"`
	Limit        float64    `json:"limit"`
	Burst        float64    `json:"burst"`
	WindowEndsAt *time.Time `json:"window_ends_at"`
	*standingJSON
}

// standingJSON is what a Usage has of a Balance.
type standingJSON struct {
	Granted float64 `json:"granted"`
	Expired float64 `json:"expired"`
	Debt    float64 `json:"debt"`
	Lots    []Lot   `json:"lots"`
}

// MarshalJSON writes s with the names that the command prints, too. window_ends_at is null
// if there is no window.
func (u Usage) MarshalJSON() ([]byte, error) {
	t := usageJSON{Spent: u.Spent, Reserved: u.Reserved, Reservations: u.Reservations, Remaining: u.Result.Remaining, Limit: u.Result.Limit, Burst: u.Result.Burst}
	if !u.WindowEndsAt.IsZero() {
		t.WindowEndsAt = &u.WindowEndsAt
	}
	if u.Result.Policy.Algorithm == Balance {
		t.standingJSON = &standingJSON{u.Granted, u.Expired, u.Debt, append([]Lot{}, u.Lots...)}
	}
	return json.Marshal(t)
}

// Err returns nil if the request was allowed, else a *DeniedError with r: for code that
// returns a denial as an error, such as the work of RunTx. Call it if the method returned
// no error.
func (r Result) Err() error {
	if r.Allowed {
		return nil
	}
	return &DeniedError{Result: r}
}

// Err returns nil if all requests were allowed, else a *DeniedError with the Result of the
// request that denied the whole, DeniedBy, and PerRequest. Call it if the method returned no error.
func (r Results) Err() error {
	switch {
	case r.Allowed:
		return nil
	case r.DeniedBy < 0: // an error was returned
		return &DeniedError{}
	}
	return &DeniedError{Result: r.PerRequest[r.DeniedBy], PerRequest: r.PerRequest}
}

// DeniedError is a denial as an error: that of Err, and of a Wait that was denied. In an HTTP
// handler httplimit.Deny answers with it.
type DeniedError struct {
	// Result is the answer to the request that denied. Its Policy is the limit.
	Result Result
	// PerRequest is that of an AllowAll, AllowAny or WaitAll, which has Result too. It
	// is nil for a single request.
	PerRequest []Result
}

// Error returns the policy, the reason and the time to retry after.
func (e *DeniedError) Error() string {
	by := "pglimit: denied"
	if e.Result.Policy.Name != "" {
		by += " by " + e.Result.Policy.Name
	}
	switch {
	case e.Result.RetryAfter == Never && e.Result.Reason == ReasonBlocked:
		return by + " (blocked)"
	case e.Result.RetryAfter == Never && e.Result.Policy.Algorithm == Balance:
		return by + ": the balance has too few units"
	case e.Result.RetryAfter == Never:
		return by + ": the cost is more than the limit ever allows"
	case e.Result.Reason == "": // not decided
		return by
	}
	return fmt.Sprintf("%s (%s): retry after %s", by, e.Result.Reason, durations.Format(e.Result.RetryAfter))
}
