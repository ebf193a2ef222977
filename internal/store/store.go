// Package store is the contract between the limiter and what keeps its state: the
// Store interface, the values that cross it and the errors that come back.
package store

import (
	"context"
	"math"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Store keeps what keys hold. Each method is atomic for its key, TakeAll for all of
// its keys. It is safe for concurrent use, unless it is the store of a transaction.
//
// A Query must not be changed or used again after a method that took it has
// returned an error: a statement in flight may still read it.
type Store interface {
	// Take grants as many steps of q.Cost as fit, up to q.Count.
	Take(ctx context.Context, q *Query) (Outcome, error)
	// TakeAll takes all joints, which are in lock order, or none, and leaves the
	// answers in them. If possible is false, one of them never fits, and TakeAll
	// only reads. It reports whether all were taken.
	TakeAll(ctx context.Context, joints []*Joint, possible bool) (bool, error)
	// Fill adds q.Units, as far as the burst goes.
	Charge(ctx context.Context, q *Query) (Outcome, error)
	// Refund gives q.Units back, as far as they are there.
	Refund(ctx context.Context, q *Query) (Outcome, error)
	// Undo gives back what is left of q.Units that were counted in g.
	Undo(ctx context.Context, q *Query, g algorithm.Grant) (Outcome, error)
	// Get reads how the key stands.
	Get(ctx context.Context, q *Query) (Outcome, error)
	// Usage is Get that adds up the key's open reservations at that same moment; for
	// a fixed window, those of the present one.
	Usage(ctx context.Context, q *Query) (Usage, error)

	// Block blocks the key for so many microseconds.
	Block(ctx context.Context, q *Query, forUs int64) error
	// Unblock lifts the block that ends at until; any if until is 0.
	Unblock(ctx context.Context, q *Query, until int64) error
	// Reset forgets the key.
	Reset(ctx context.Context, q *Query) error
	// Leave gives a queue's place back if no later request has one.
	Leave(ctx context.Context, q *Query, ticket int64) error

	// Reserve is Take for one step that is noted once it is granted. If a was
	// admitted before, Reserve decides nothing and returns that in Outcome.Before.
	Reserve(ctx context.Context, q *Query, a *Admission) (Outcome, error)
	// Settle ends a reservation; ErrNoReservation if there is none.
	Settle(ctx context.Context, e *Ending) (Ended, error)
	// Due lists open reservations of the key that have expired, MaxDue at most.
	Due(ctx context.Context, q *Query) (ids []string, err error)
	// NextDue returns the time until the next open reservation of any key expires:
	// microseconds, negative if one has, NoneDue if there is none.
	NextDue(ctx context.Context) (wait int64, err error)
}

// Many is what a Store has that can take from many keys in one statement.
type Many interface {
	// TakeMany decides rows of one algorithm and one Commit, which are in lock order
	// and of different keys. now is the caller's clock, nil for the store's.
	// After an error, rows whose Outcome is Decided were decided all the same.
	// It is ErrLocked if a row was locked for longer than the rows' LockWait, and a
	// *RowError if a value in a row failed the statement.
	TakeMany(ctx context.Context, rows []*Row, now *int64) error
	// Locked marks the rows that other transactions have locked.
	Locked(ctx context.Context, rows []*Row) (locked []bool, err error)
	// Refuses returns an error while the store answers nothing, because of a circuit
	// breaker that is open; else nil.
	Refuses() error
}

// Query is one request for one key as a store takes it: valid, its policy compiled
// to numbers. Times are Unix microseconds.
type Query struct {
	algorithm.Rules
	Algorithm algorithm.Name
	Policy    string // the policy's name
	Key       string // as stored

	Units float64 // requested
	// Units are asked for in Count steps of Cost, of which as many are granted as
	// fit: one step for all or nothing.
	Cost, Count float64
	// Unit is what RetryAfter waits for: that many more units, or the rest of Units
	// if that is less.
	Unit float64
	// Room is how full the key may be afterwards: the capacity, or less where a
	// queue's turn has to come in time.
	Room float64

	Shared   bool          // whether it may share a statement with other requests
	Now      *int64        // the caller's clock; nil: the store's
	Edges    Edges         // of a calendar's periods; a store sets it
	Commit   Commit        // whether the answer waits for the disk
	LockWait time.Duration // after that long a locked row is an ErrLocked; 0: the session's lock_timeout
}

// Edges are the edges of two calendar periods in a row, around a moment: the first
// period begins at From and ends at Turn, the second ends at Until.
type Edges struct{ From, Turn, Until int64 }

// Commit is what synchronous_commit is set to for one statement.
type Commit string

// What Commit may be. As in PostgreSQL, AsSet leaves the setting alone; Durable
// raises it where it is off.
const (
	AsSet   Commit = ""
	Durable Commit = "on"
	Relaxed Commit = "off"
)

// Rest returns the units that RetryAfter waits for when granted units were granted.
func (q *Query) Rest(granted float64) float64 { return min(q.Unit, q.Units-granted) }

// Possible reports whether an empty key could grant the request.
func (q *Query) Possible() bool { return algorithm.Fit(q.Capacity, 0, q.Cost) >= 1 }

// Hurried reports whether the key may hold less than its capacity afterwards.
func (q *Query) Hurried() bool { return q.Room < q.Capacity }

// Outcome is what a store answers: the row after the decision. Times are Unix
// microseconds.
type Outcome struct {
	Decided      bool    // false: nothing was decided, because of Before
	Granted      float64 // steps of Query.Cost
	Blocked      bool    // nothing was granted because the key was blocked before
	Now          int64   // the clock as read; UpdatedAt where only that is known
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
	Count   int
	Outcome Outcome
}

// Joint is what the requests of one AllowAll want of one policy and key: a Query for
// their sum.
type Joint struct {
	Query
	Index int // of its first request, for errors
	// Needs holds, for each request, its cost and that of the requests before it.
	Needs []float64

	// Outcome is the key after the whole was decided. Granted is 1 where the sum
	// would have fitted, also if the whole was denied.
	Outcome Outcome
	// Views is Outcome.View for each request, if the whole was denied: a log's view
	// is about one number of units.
	Views []algorithm.View
}

// Fits reports whether the sum was granted, or would have been.
func (j *Joint) Fits() bool { return j.Outcome.Granted > 0 }

// Show sets the views of the joint as it stands.
func (j *Joint) Show(view func(need float64) algorithm.View) {
	j.Views = make([]algorithm.View, len(j.Needs))
	for i, need := range j.Needs {
		j.Views[i] = view(need)
	}
	j.Outcome.View = j.Views[len(j.Views)-1]
}

// Judge sets, in an outcome for which nothing was taken, whether the sum would have
// fitted.
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

// State is the state of a reservation, as the table has it.
type State string

// The states. Spent is an admission that is remembered under an idempotency key and
// was no reservation.
const (
	Open      State = "open"
	Settled   State = "settled"
	Cancelled State = "cancelled"
	Expired   State = "expired"
	Spent     State = "spent"
)

// Admission is what a store notes of a request that it admits, besides the Query.
type Admission struct {
	ID, Idempotency string // as stored; Idempotency is empty for none
	State           State  // Held or Spent
	TTL, Remember   int64  // microseconds
	Limit           float64
}

// Reservation is an admission as a store keeps it.
type Reservation struct {
	algorithm.Rules   // of the admission
	Algorithm         algorithm.Name
	Limit             float64
	ID                string
	State             State
	Policy, Key       string // the key as stored
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
	ID        string
	Algorithm algorithm.Name
	State     State // what it becomes
	Units     float64
	Now       *int64
	Commit    Commit
}

// Ended is what an Ending found and did.
type Ended struct {
	Reservation         // as it was before
	Now         int64   // the clock as read
	Changed     bool    // it was open, or had expired and was settled late
	Freed       bool    // units went back
	Outcome     Outcome // how the key stands
}

// Usage is how a key stands, with its open reservations.
type Usage struct {
	Outcome      Outcome
	Reservations int
	Reserved     float64 // units
}

// MinTTL is the least time to live of a reservation: a process that found no
// reservation about to expire need not look again for that long.
const MinTTL = time.Second

// MaxDue is how many expired reservations of a key Due returns at most.
const MaxDue = 100

// NoneDue is what NextDue returns if there is no open reservation.
const NoneDue = math.MaxInt64
