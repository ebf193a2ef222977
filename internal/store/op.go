package store

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pglimit/pglimit/internal/algorithm"
)

// Store keeps the state of keys. It is safe for concurrent use, unless it is the store of a
// transaction.
type Store interface {
	// Do carries op out, atomically for its key, or for all keys of a TakeAll. It sets the
	// outcome unless it returns an error. After an error op must not be changed or used
	// again: a statement in flight may still read it.
	Do(ctx context.Context, op *Op) error
}

// Kind selects what an Op does.
type Kind uint8

// The kinds.
const (
	// Take grants as many steps of Cost as fit, up to Count.
	Take Kind = iota
	// TakeAll takes all Groups, which are in lock order, or none. It sets their outcomes and
	// Allowed. If some were admitted before under their idempotency key, it decides nothing, sets
	// Allowed and the Before of their outcomes.
	TakeAll
	// GetAll is a TakeAll that is denied, and only reads.
	GetAll
	// TakeAny takes the Units, which are the same of all Groups, from some of them: see Give. It
	// sets their outcomes and Allowed. It does as a TakeAll with what was admitted before.
	TakeAny
	// Reserve is Take, and stores Admission if anything is granted. If that was
	// admitted before, Reserve decides nothing and returns the admission in Outcome.Before.
	Reserve
	// Charge adds Units, up to the burst.
	Charge
	// Refund gives Units back, at most those in use.
	Refund
	// Undo gives back what is left of Units that were counted in Grant.
	Undo
	// Settle ends the reservation ID with Units spent, and sets Ended. It returns
	// ErrNoReservation if there is none, and ErrReservationLocked if that was locked for
	// longer than LockWait.
	Settle
	// SettleAll carries out the Ends, which are Settles in lock order with an ID each, or none of
	// them. It returns ErrNoReservation as Settle, and the Conflict of one that has ended. Groups
	// names their keys.
	SettleAll
	// Get reads the key's state.
	Get
	// GetUsage is Get with the sum of the key's open reservations at the same moment; for a
	// fixed window, those of the current one.
	GetUsage
	// Block blocks the key for ForUs: by an operator, or by the denial at DeniedAt.
	Block
	// Unblock lifts the block that ends at Until; any block if Until is 0.
	Unblock
	// Reset forgets the key.
	Reset
	// Present sets Wait to the time for which the key surely has a row, in microseconds; 0 or
	// less if it has none. Only a store in a database knows it, and the next two.
	Present
	// Insert gives the key an empty row, for which the caller has a permit. It sets Allowed if
	// the key had none.
	Insert
	// Grant adds Units to a balance, as Lot says, which it sets. With an Admission it does so
	// unless that was admitted before, as Reserve.
	Grant
	// Leave gives the place Ticket in a queue back if no later request has one, and sets
	// Allowed if it did.
	Leave
	// Due sets IDs to open reservations of the key that have expired, at most MaxDue.
	Due
	// NextDue sets Wait to the time until the next open reservation of any key expires. It is
	// negative if one has expired, and NoneDue if there is none.
	NextDue
	// Estimate sets Factor by what the key's last estimates have really spent.
	Estimate
	// Attempt begins the attempt ID of Op.Attempt, or denies it.
	Attempt
	// Succeeded ends the attempt ID, and clears the count and the wait of the row that counted
	// it. Both it and Failed return ErrNoTicket if no such attempt is under way.
	Succeeded
	// Failed ends the attempt ID as a failure.
	Failed
	// GetAttempts reads the row of the sources that have not succeeded before.
	GetAttempts
	// Acquire takes the slot ID of Op.Slot, or denies it.
	Acquire
	// Renew moves the end of the slot ID. Both it and Release return ErrNoSlot if no such slot is
	// held.
	Renew
	// Release gives the slot ID back.
	Release
	// GetSlots reads the key's slots.
	GetSlots
	// Permit counts new rows of the policy, which the caller may Insert then: at most Permits,
	// which it sets to their number. 0 says that a key is about to be Reset. -1 counts none: it
	// sets Permits to 1 if there is room, and else to 0.
	Permit
)

// kinds has what a dispatcher needs to know of each kind.
var kinds = [...]struct {
	reads  bool // it locks nothing
	shares bool // it is one statement, and may share a transaction with others
	lazy   bool // it need not be durable: if it is lost, less is granted
}{
	Take:      {shares: true},
	TakeAll:   {},
	GetAll:    {reads: true},
	TakeAny:   {},
	Reserve:   {shares: true},
	Charge:    {shares: true},
	Refund:    {shares: true},
	Undo:      {shares: true},
	Settle:    {shares: true},
	SettleAll: {},
	Get:       {reads: true, shares: true},
	GetUsage:  {reads: true, shares: true},
	Block:     {shares: true},
	Unblock:   {shares: true},
	Reset:     {}, // two statements, and it locks reservations in any order
	Present:   {shares: true},
	Insert:    {shares: true},
	Grant:     {shares: true},
	Leave:     {shares: true},
	Due:       {reads: true},
	NextDue:   {reads: true},
	Estimate:  {reads: true},
	// A key has several rows of attempts: in a shared transaction they would be locked in any order.
	Attempt:     {},
	Succeeded:   {},
	Failed:      {},
	GetAttempts: {reads: true, shares: true},
	Acquire:     {shares: true},
	Renew:       {shares: true},
	Release:     {shares: true, lazy: true},
	GetSlots:    {reads: true, shares: true},
	Permit:      {},
}

// Op is one use of a verb: what is asked of a store, and the outcome.
type Op struct {
	Kind Kind
	Query

	Admission *Admission      // of a Reserve, a Grant
	Lot       *Granting       // of a Grant
	Grant     algorithm.Grant // of an Undo
	Groups    []*Group        // of a TakeAll, a TakeAny or a SettleAll, in lock order
	Ends      []*Op           // of a SettleAll
	Partial   bool            // of a TakeAny: what its groups do not have is granted elsewhere
	Attempt   *Attempting     // of what is about attempts
	Slot      *Holding        // of what is about slots
	ID        string          // of a Settle's reservation, an attempt or a slot, as stored
	State     State           // of a Settle: what the reservation becomes
	ForUs     int64           // of a Block
	DeniedAt  int64           // of a Block; 0: an operator's, which no Undo lifts
	Until     int64           // of an Unblock
	Ticket    int64           // of a Leave
	Permits   int64           // of a Permit

	// OwnRow: the shared row of a policy's other keys does not answer.
	OwnRow bool
	// Locks: a Take of no units locks the row and records nothing.
	Locks bool
	// Merges reports whether a Take may share a row of a statement with others.
	Merges bool
	// Known, if set, reports whether a denial that came to be known meanwhile answers the
	// request. A store that lets a Take, TakeAll or Reserve wait calls it before it sends
	// that, and returns ErrKnown if it does.
	Known func() bool
	// Late, if set, is called if Do granted something after it had returned, because its
	// caller had left.
	Late func()

	// The outcome.

	Outcome Outcome
	Ended   *Ended   // of a Settle
	Usage   Usage    // of a GetUsage
	Allowed bool     // of a TakeAll, a TakeAny or a Leave; a store may set it for a Reset
	IDs     []string // of a Due, as stored
	Wait    int64    // of a NextDue or a Present: microseconds
	Factor  float64  // of an Estimate
	Full    Full     // the key has no row, and its policy none left
	// Rows is the number of requests that the statement or transaction decided which decided
	// this one. A store that shares statements sets it.
	Rows int
}

// Reads reports whether op locks no row.
func (op *Op) Reads() bool { return kinds[op.Kind].reads }

// Once reports whether op is for several keys and counts once under an idempotency key.
func (op *Op) Once() bool {
	return len(op.Groups) > 0 && op.Groups[0].Admission != nil && op.Groups[0].Admission.Idempotency != ""
}

// Shares reports whether op may share a transaction with others.
func (op *Op) Shares() bool {
	return kinds[op.Kind].shares && (op.Kind != Reserve || op.Possible())
}

// Lazy reports whether a crash of the server may lose op, which then grants less. Such an op waits
// for the disk only with others that do.
func (op *Op) Lazy() bool { return kinds[op.Kind].lazy }

// Granted reports whether the outcome granted something.
func (op *Op) Granted() bool { return op.Allowed || op.Outcome.Granted > 0 }

// Conflict returns an ErrReservationEnded if the reservation of a Settle had ended in another way.
// The error calls it what.
func (op *Op) Conflict(what string) error {
	s := op.Ended
	if s.Changed || s.State == Settled && op.State == Settled && s.Units == op.Units || s.State != Settled && op.State != Settled {
		return nil
	}
	amount := func(units float64) string { return strconv.FormatFloat(units, 'f', -1, 64) }
	return fmt.Errorf("%w: %s was %s, with %s of its %s units", ErrReservationEnded, what, s.State, amount(s.Units), amount(s.Reserved))
}

// Reservation returns the ID of a Settle's reservation.
func (op *Op) Reservation() ReservationID {
	return ReservationID{Algorithm: op.Algorithm, Policy: op.Policy, Key: op.Key, ID: op.ID}
}

// Full says what became of a request for a key without a row, of a policy that has as many as
// it may have.
type Full uint8

// The values of Full.
const (
	HasRoom   Full = iota
	DeniedNow      // it was not decided
	ByRest         // the shared row decided: Query.OfRest
)

// WithoutRow answers op for a key that has no row and gets none: by the shared row, which do
// decides, or by a denial.
func (op *Op) WithoutRow(do func(rest *Op) error) error {
	if op.Bound.Rest == nil || op.OwnRow || op.Kind == Reserve || op.Kind == Block {
		op.Full = DeniedNow
		return nil
	}
	rest := &Op{Kind: op.Kind, Query: op.OfRest(), Merges: op.Merges, Late: op.Late}
	if rest.Kind == Take && !rest.Possible() {
		rest.Kind, rest.Merges = Get, false
	}
	err := do(rest)
	if err == nil {
		op.Full, op.Outcome, op.Rows = ByRest, rest.Outcome, rest.Rows
	}
	return err
}

// Refuse returns a Store that returns err for every Op.
func Refuse(err error) Store { return refusing{err} }

type refusing struct{ err error }

func (r refusing) Do(context.Context, *Op) error { return r.err }
