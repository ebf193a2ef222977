// Package store is the contract between the limiter and the storage of its state: the
// Store interface, its operations, their values and errors.
package store

import (
	"math"
	"slices"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Query is one valid request for one key, with its policy compiled to numbers. Times are
// Unix microseconds.
type Query struct {
	algorithm.Rules
	Algorithm algorithm.Name
	Policy    string // the policy's name
	Key       string // as stored

	Units float64 // requested
	// Units are requested in Count steps of Cost, and as many steps as fit are granted.
	// All or nothing is one step.
	Cost, Count float64
	// RetryAfter is the time until Unit more units fit, or the rest of Units if that is
	// less.
	Unit float64
	// Floor is the part of the capacity that must be free after the request, in millionths.
	Floor int64
	// Room is the largest level after the request: the Ceiling, or less if a queue's
	// turn has to come in time.
	Room float64

	Marks []int64 // parts of the burst to be recorded once reached, in millionths; nil: none
	Sums  Sums    // of the units that decisions grant and give back
	// Ledger: what changes a balance is entered, with the Note.
	Ledger bool
	Note   string

	Now      *int64        // the caller's clock; nil: the store's
	Bound    *KeyBound     // on the policy's rows; nil: none
	Edges    Edges         // of a calendar's periods; a store sets it
	Commit   Commit        // whether the answer waits for the disk
	LockWait time.Duration // a row locked for longer is an ErrLocked; 0: the session's lock_timeout
}

// KeyBound bounds the keys of a policy that have a row.
type KeyBound struct {
	MaxKeys int64
	Rest    *algorithm.Rules // of the row that all other keys share; nil: they are denied
}

// RestKey is the key of the row that keys share: no caller can have it.
const RestKey = ""

// OfRest returns the query of the shared row. Its denials begin no block: that would be one of
// all keys. It has no marks: it is nobody's. Its sums are those of all these keys.
func (q *Query) OfRest() Query {
	r := *q
	r.Key, r.Rules, r.Bound, r.Marks = RestKey, *q.Bound.Rest, nil, nil
	r.Room = r.Ceiling()
	return r
}

// Edges are the edges of two successive calendar periods around a moment: the first
// begins at From and ends at Turn, the second ends at Until.
type Edges struct{ From, Turn, Until int64 }

// Commit is the synchronous_commit of one statement.
type Commit string

// What Commit may be. As in PostgreSQL, AsSet leaves the setting alone; Durable
// raises it where it is off.
const (
	AsSet   Commit = ""
	Durable Commit = "on"
	Relaxed Commit = "off"
)

// Records reports whether a decision keeps more than the key's row.
func (q *Query) Records() bool { return len(q.Marks) > 0 || q.Sums.Span > 0 || q.Ledger }

// Sums are what the database keeps of the units spent: a sum for each Span since 1970-01-01 UTC,
// which the janitor deletes Keep after the span's end. Both are microseconds; 0: none.
type Sums struct{ Span, Keep int64 }

// Rest returns the units that RetryAfter waits for after granted units were granted.
func (q *Query) Rest(granted float64) float64 { return min(q.Unit, q.Units-granted) }

// Ceiling returns the capacity without what the Floor keeps free. The statements for many
// keys and the SQL functions compute it alike, to the last bit.
func (q *Query) Ceiling() float64 { return Ceiling(q.Capacity, q.Floor) }

// Ceiling is Query.Ceiling.
func Ceiling(capacity float64, floor int64) float64 {
	return capacity - float64(capacity*float64(floor))/1e6
}

// Possible reports whether a key could grant the request: of a balance one with enough units,
// else an empty one.
func (q *Query) Possible() bool {
	return q.Algorithm == algorithm.Balance || algorithm.Fit(q.Ceiling(), 0, q.Cost) >= 1
}

// Hurried reports whether Room is less than the Ceiling.
func (q *Query) Hurried() bool { return q.Room < q.Ceiling() }

// Outcome is a store's answer: the row after the decision. Times are Unix microseconds.
type Outcome struct {
	Decided      bool    // false: nothing was decided, because of Before
	Granted      float64 // steps of Query.Cost
	Blocked      bool    // nothing was granted because the key was blocked before
	Now          int64   // the clock as read; UpdatedAt if only that is known
	UpdatedAt    int64   // the clock that never moves back
	BlockedUntil int64
	Ticket       int64 // of a queue
	View         algorithm.View
	Before       *Reservation // the admission under the same idempotency key
}

// IsBlocked reports whether the key is blocked after the decision.
func (o *Outcome) IsBlocked() bool { return o.BlockedUntil > o.UpdatedAt }

// Row is one row of a statement that takes from many keys: Count equal requests.
type Row struct {
	Query   *Query
	Count   int64
	Outcome Outcome
}

// Group is the requests of one AllowAll for one policy and key: a Query for their sum.
type Group struct {
	Query
	Index int // of its first request, for errors
	// Contended: the key was denied in the last seconds. The whole takes its turn with others
	// for it.
	Contended bool
	// Needs holds, for each request, its cost and that of the requests before it.
	Needs []float64

	// Outcome is the key's state after the decision. Granted is 1 if the sum would have
	// fitted, even if the whole was denied.
	Outcome Outcome
	Full    bool // it has no row, and there is no room for one
	// Admission is stored with what is granted. Of a TakeAll all groups have one, or none; so have
	// those of a TakeAny.
	Admission *Admission
	// Given is the units that a group of a TakeAny gave. Need is those that it would have needed
	// if it gave none, 0 if it was not asked.
	Given, Need float64
	Last        bool // at most one of a TakeAny, of a shadow policy: its row is locked after all others
	// Views has a View for each request, if the whole was denied: a log's view is about
	// one number of units.
	Views []algorithm.View
}

// Fits reports whether the sum was granted, or would have been.
func (g *Group) Fits() bool { return g.Outcome.Granted > 0 }

// Show sets the group's views.
func (g *Group) Show(view func(need float64) algorithm.View) {
	g.Views = make([]algorithm.View, len(g.Needs))
	for i, need := range g.Needs {
		g.Views[i] = view(need)
	}
	g.Outcome.View = g.Views[len(g.Views)-1]
}

// Judge sets whether the sum would have fitted, in an outcome for which nothing was
// taken.
func (g *Group) Judge(blocked bool) {
	o := &g.Outcome
	o.Granted, o.Blocked = 0, blocked
	if !blocked && algorithm.Fit(g.Room, o.View.Level(&g.Rules, o.UpdatedAt), g.Cost) >= 1 {
		o.Granted = 1
	}
}

// Denied reports whether groups that were only read do not all fit, and their denial begins no
// block.
func Denied(groups []*Group) bool {
	begins := func(g *Group) bool { return !g.Fits() && !g.Outcome.Blocked && g.BlockFor > 0 }
	return !AllFit(groups) && !slices.ContainsFunc(groups, begins)
}

// AllPossible reports whether keys could grant all groups.
func AllPossible(groups []*Group) bool {
	return !slices.ContainsFunc(groups, func(g *Group) bool { return !g.Possible() })
}

// AllFit reports whether all groups fit.
func AllFit(groups []*Group) bool {
	for _, g := range groups {
		if !g.Fits() {
			return false
		}
	}
	return true
}

// Give divides the Units of a TakeAny among its groups, in the order of their Index, by what
// their outcomes have in use. It sets Given and Need, and reports whether all is given. If not,
// none is, unless it is partial.
func Give(groups []*Group, partial bool) bool {
	groups = slices.SortedFunc(slices.Values(groups), func(a, b *Group) int { return a.Index - b.Index })
	rest := 0.0
	for i, g := range groups {
		if i == 0 {
			rest = g.Units
		}
		o := &g.Outcome
		if g.Given, g.Need, o.Granted = 0, rest, 0; !o.Blocked {
			g.Given = g.Share(o.View.Level(&g.Rules, o.UpdatedAt), rest)
		}
		rest -= g.Given
	}
	if rest == 0 || partial {
		return true
	}
	for _, g := range groups { // what it has and the others lack
		g.Given, g.Need = 0, g.Given+rest
	}
	return false
}

// Share returns what a group of a TakeAny has of the rest at a level: all, or else as many steps
// of Cost as fit.
func (g *Group) Share(level, rest float64) float64 {
	if rest == 0 || algorithm.Fit(g.Room, level, rest) >= 1 {
		return rest
	}
	n := max(0, algorithm.Fit(g.Room, level, g.Cost))
	if n > 0 && algorithm.Fit(g.Room, level, float64(n*g.Cost)) < 1 { // the product was rounded up
		n--
	}
	return min(rest, float64(n*g.Cost))
}

// State is the state of a reservation, as the table stores it.
type State string

// The states of a reservation.
const (
	Open      State = "open"
	Settled   State = "settled"
	Cancelled State = "cancelled"
	Expired   State = "expired"
	Spent     State = "spent"
	Granted   State = "granted" // it remembers a Grant
)

// Admission is stored with a request that is admitted, in addition to the Query.
type Admission struct {
	ID, Idempotency string // as stored; Idempotency is empty for none
	State           State  // Open or Spent
	TTL, Remember   int64  // microseconds
	Limit           float64
	Requested       float64 // Cost of the request, if that may differ from what is reserved; 0: the same
	Estimate        float64 // that, of an estimate, which is kept if it is granted as a whole; 0: it is none
}

// Attempting is what an op about attempts has in addition to the Query, and its outcome.
type Attempting struct {
	Rules  algorithm.AttemptRules // not of a report, which uses those of the row
	Source string                 // as stored; empty for none
	TTL    int64                  // microseconds

	Granted bool             // an Attempt is under way
	Tries   *algorithm.Tries // the row, with the end of the key's block; expired tickets are counted
}

// Granting is what a Grant has in addition to the Query, and its outcome.
type Granting struct {
	Ends     int64 // algorithm.Never: it does not expire
	Priority int64
	Source   string

	Refused algorithm.Refusal
}

// KnownFor is how long a source is known after its last success, in microseconds.
const KnownFor = int64(90 * 24 * time.Hour / time.Microsecond)

// MostKnown is how many sources a key knows: while it does, a success from another is not
// remembered.
const MostKnown = 100

// Holding is what an op about slots has in addition to the Query, and its outcome.
type Holding struct {
	Cost, Limit int64 // units; not of a Renew or Release
	TTL         int64 // microseconds; of a Renew 0 for the Period of the key's last Acquire
	Period      int64 // the policy's

	Granted bool  // an Acquire holds the slot
	Held    int64 // units in all, of slots that have not ended
	Slots   int64
	Fence   int64 // of the slot, or the last one
	EndsAt  int64 // of the slot
	FreeAt  int64 // when the Cost fits if nothing is renewed or released; 0: now
	EmptyAt int64 // when the last slot ends; 0: none is held
}

// Reservation is a stored admission.
type Reservation struct {
	ReservationID
	algorithm.Rules   // of the admission
	Limit             float64
	State             State
	Reserved, Units   float64
	Requested         float64 // Admission's
	Level             float64 // of the key right after the admission
	EndsAt, CountedAt int64
	CreatedAt         int64
	ExpiresAt         int64
}

// Overdue reports whether the reservation is open and has expired.
func (r *Reservation) Overdue(now int64) bool { return r.State == Open && r.ExpiresAt <= now }

// Changes reports whether bringing the reservation to a state would change it.
func (r *Reservation) Changes(to State, now int64) bool {
	return r.State == Open && (to != Expired || r.ExpiresAt <= now) || r.State == Expired && to == Settled
}

// Ended is the outcome of a Settle.
type Ended struct {
	Reservation         // as it was before
	Now         int64   // the clock as read
	Changed     bool    // it was open, or had expired and was settled late
	Freed       bool    // units went back
	Outcome     Outcome // the key's state
}

// Usage is a key's state with its open reservations.
type Usage struct {
	Outcome      Outcome
	Reservations int
	Reserved     float64            // units
	Account      *algorithm.Account // of a balance, as of the outcome
}

// MinTTL is the shortest lifetime of a reservation. A process that found no reservation
// about to expire need not look again for that long.
const MinTTL = time.Second

// The history of a key's estimates, as ReservationEstimate reads it.
const (
	MaxEstimates = 20 // of the last reservations
	minEstimates = 5
)

// Factor returns what a key's next estimate is multiplied by, from the number of its last
// estimates, their sum and what they have really spent.
func Factor(n int, spent, estimated float64) float64 {
	if n < minEstimates {
		return 1
	}
	return min(2, max(0.1, spent/estimated))
}

// Correct returns an estimate of cost units multiplied by a factor: a valid cost, whole if
// cost is whole, and no more than an unused key has if cost is not. The SQL functions compute
// it alike.
func Correct(cost, factor, burst float64) float64 {
	if factor == 1 {
		return cost
	}
	corrected := float64(cost * factor)
	if cost == math.Trunc(cost) {
		corrected, burst = math.Ceil(corrected*0.999999999999), math.Floor(burst) // not rounded up for the rounding of a sum
	}
	return max(min(1, 1e-9*burst), min(corrected, max(cost, burst)))
}

// MaxDue is the largest number of reservations that Due returns: a denied request gives
// back no more of them.
const MaxDue = 200

// NoneDue is NextDue's result if there is no open reservation.
const NoneDue = math.MaxInt64
