// Package store is the contract between the limiter and the storage of its state: the
// Store interface, its values and its errors.
package store

import (
	"context"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Store keeps the state of keys. Each method is atomic for its key, and TakeAll for all
// of its keys. A Store is safe for concurrent use, unless it is the store of a
// transaction.
//
// A Query must not be changed or used again after its method returned an error: a
// statement in flight may still read it.
type Store interface {
	// Take grants as many steps of q.Cost as fit, up to q.Count.
	Take(ctx context.Context, q *Query) (Outcome, error)
	// TakeAll takes all joints, which are in lock order, or none, and sets their
	// outcomes. If possible is false, one of them never fits, and TakeAll only reads. It
	// reports whether all were taken.
	TakeAll(ctx context.Context, joints []*Joint, possible bool) (bool, error)
	// Charge adds q.Units, up to the burst.
	Charge(ctx context.Context, q *Query) (Outcome, error)
	// Refund gives q.Units back, at most those in use.
	Refund(ctx context.Context, q *Query) (Outcome, error)
	// Undo gives back what is left of q.Units that were counted in g.
	Undo(ctx context.Context, q *Query, g algorithm.Grant) (Outcome, error)
	// Get reads the key's state.
	Get(ctx context.Context, q *Query) (Outcome, error)
	// Usage is Get with the sum of the key's open reservations at the same moment; for a
	// fixed window, those of the current one.
	Usage(ctx context.Context, q *Query) (Usage, error)

	// Block blocks the key for forUs microseconds.
	Block(ctx context.Context, q *Query, forUs int64) error
	// Unblock lifts the block that ends at until; any block if until is 0.
	Unblock(ctx context.Context, q *Query, until int64) error
	// Reset forgets the key.
	Reset(ctx context.Context, q *Query) error
	// Leave gives a place in a queue back if no later request has one, and reports whether
	// it did.
	Leave(ctx context.Context, q *Query, ticket int64) (bool, error)

	// Reserve is Take for one step, and stores a if it is granted. If a was admitted
	// before, Reserve decides nothing and returns the admission in Outcome.Before.
	Reserve(ctx context.Context, q *Query, a *Admission) (Outcome, error)
	// Settle ends a reservation. It returns ErrNoReservation if there is none, and
	// ErrReservationLocked if that was locked for longer than LockWait.
	Settle(ctx context.Context, e *Ending) (Ended, error)
	// Due lists open reservations of the key that have expired, at most MaxDue, by the ID
	// as stored.
	Due(ctx context.Context, q *Query) (ids []string, err error)
	// NextDue returns the time until the next open reservation of any key expires, in
	// microseconds. It is negative if one has expired, and NoneDue if there is none.
	NextDue(ctx context.Context) (wait int64, err error)
}

// Many is a Store that can take from many keys in one statement.
type Many interface {
	// TakeMany decides rows of different keys, in lock order, with one algorithm and one
	// Commit. now is the caller's clock, nil for the store's. After an error, rows whose
	// Outcome is Decided were still decided. The error is ErrLocked if a row was locked
	// for longer than the rows' LockWait, and a *RowError if a value in a row failed the
	// statement.
	TakeMany(ctx context.Context, rows []*Row, now *int64) error
	// Locked marks the rows that other transactions have locked.
	Locked(ctx context.Context, rows []*Row) (locked []bool, err error)
	// Refuses returns an error while an open circuit breaker refuses requests, and nil
	// once it admits a probe.
	Refuses() error
	// Answers returns how many statements the database has answered.
	Answers() int64
	// Crowded reports whether all connections are in use by others than the limiter.
	Crowded() bool
}

// Part is a call of one method of inner, a Store for one statement. If the method needs
// another one after a statement that changed nothing, it returns ErrAlone.
type Part func(inner Store) error

// Pipeliner is a Store that can send many statements at once.
type Pipeliner interface {
	// Pipelines reports whether Pipeline can be used at present.
	Pipelines() bool
	// Pipeline makes the calls as one transaction in one round trip and returns their
	// errors. Each call runs twice, first to record its statement and then to read its
	// answer; only what it returns last counts. Calls that lock rows are in lock order, and
	// have one Commit and the LockWait wait.
	//
	// After a *PartError nothing was decided, and after ErrAlone nothing was sent. After any
	// other error the calls may have been decided.
	Pipeline(ctx context.Context, wait time.Duration, calls []Part) (errs []error, err error)
}

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
	// Room is the largest level after the request: the capacity, or less if a queue's
	// turn has to come in time.
	Room float64

	Shared   bool          // whether it may share a statement with other requests
	Now      *int64        // the caller's clock; nil: the store's
	Edges    Edges         // of a calendar's periods; a store sets it
	Commit   Commit        // whether the answer waits for the disk
	LockWait time.Duration // a row locked for longer is an ErrLocked; 0: the session's lock_timeout
	// Rows is the number of requests that the statement or transaction decided which decided
	// this one. A store that shares statements sets it with an answer that is no error.
	Rows int

	// Known, if set, reports whether a denial that came to be known meanwhile answers the
	// request. A store that lets a Take, TakeAll or Reserve wait calls it before it sends
	// that, and returns ErrKnown if it does.
	Known func() bool
	// Late, if set, is called if units were granted after the method had returned, because
	// its caller had left.
	Late func(Outcome)
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

// Rest returns the units that RetryAfter waits for after granted units were granted.
func (q *Query) Rest(granted float64) float64 { return min(q.Unit, q.Units-granted) }

// Possible reports whether an empty key could grant the request.
func (q *Query) Possible() bool { return algorithm.Fit(q.Capacity, 0, q.Cost) >= 1 }

// Apart returns a copy of q for another statement than its own.
func (q *Query) Apart() *Query {
	own := *q
	own.Known, own.Late = nil, nil
	return &own
}

// Hurried reports whether Room is less than the capacity.
func (q *Query) Hurried() bool { return q.Room < q.Capacity }

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

// Joint is the requests of one AllowAll for one policy and key: a Query for their sum.
type Joint struct {
	Query
	Index int // of its first request, for errors
	// Hot: the key was denied in the last seconds. The whole takes its turn with others
	// for it.
	Hot bool
	// Needs holds, for each request, its cost and that of the requests before it.
	Needs []float64

	// Outcome is the key's state after the decision. Granted is 1 if the sum would have
	// fitted, even if the whole was denied.
	Outcome Outcome
	// Views has a View for each request, if the whole was denied: a log's view is about
	// one number of units.
	Views []algorithm.View
}

// Fits reports whether the sum was granted, or would have been.
func (j *Joint) Fits() bool { return j.Outcome.Granted > 0 }

// Show sets the joint's views.
func (j *Joint) Show(view func(need float64) algorithm.View) {
	j.Views = make([]algorithm.View, len(j.Needs))
	for i, need := range j.Needs {
		j.Views[i] = view(need)
	}
	j.Outcome.View = j.Views[len(j.Views)-1]
}

// Judge sets whether the sum would have fitted, in an outcome for which nothing was
// taken.
func (j *Joint) Judge(blocked bool) {
	o := &j.Outcome
	o.Granted, o.Blocked = 0, blocked
	if !blocked && algorithm.Fit(j.Room, o.View.Level(&j.Rules, o.UpdatedAt), j.Cost) >= 1 {
		o.Granted = 1
	}
}

// AllFit reports whether all joints fit.
func AllFit(joints []*Joint) bool {
	for _, j := range joints {
		if !j.Fits() {
			return false
		}
	}
	return true
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
)

// Admission is stored with a request that is admitted, in addition to the Query.
type Admission struct {
	ID, Idempotency string // as stored; Idempotency is empty for none
	State           State  // Open or Spent
	TTL, Remember   int64  // microseconds
	Limit           float64
}

// Reservation is a stored admission.
type Reservation struct {
	ReservationID
	algorithm.Rules   // of the admission
	Limit             float64
	State             State
	Reserved, Units   float64
	Level             float64 // of the key right after the admission
	EndsAt, CountedAt int64
	CreatedAt         int64
	ExpiresAt         int64
}

// Overdue reports whether the reservation is open and has expired.
func (r *Reservation) Overdue(now int64) bool { return r.State == Open && r.ExpiresAt <= now }

// Ending is a change to a reservation.
type Ending struct {
	ReservationID
	State    State // what it becomes
	Units    float64
	Now      *int64
	Commit   Commit
	LockWait time.Duration // as in Query
	Rows     int           // as in Query
}

// Ended is the result of an Ending.
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
	Reserved     float64 // units
}

// MinTTL is the shortest lifetime of a reservation. A process that found no reservation
// about to expire need not look again for that long.
const MinTTL = time.Second

// MaxDue is the largest number of reservations that Due returns: a denied request gives
// back no more of them.
const MaxDue = 200

// NoneDue is NextDue's result if there is no open reservation.
const NoneDue = math.MaxInt64
