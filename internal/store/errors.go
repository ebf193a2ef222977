package store

import (
	"context"
	"errors"
	"fmt"
)

// The errors that stores return. The limiter exports them under the same names.
var (
	ErrInvalid          = errors.New("pglimit: invalid")
	ErrUnsupported      = errors.New("pglimit: unsupported")
	ErrUnavailable      = errors.New("pglimit: database unavailable")
	ErrOverloaded       = errors.New("pglimit: overloaded")
	ErrNoReservation    = errors.New("pglimit: no such reservation")
	ErrReservationEnded = errors.New("pglimit: the reservation has ended")
	ErrNoTicket         = errors.New("pglimit: no such attempt is under way")
	ErrNoSlot           = errors.New("pglimit: no such slot is held")
	ErrClosed           = errors.New("pglimit: limiter is closed")
	ErrMisconfigured    = errors.New("pglimit: misconfigured")
	ErrRetryTx          = errors.New("pglimit: transaction conflict: roll back and run the transaction again")
	ErrCommitUnknown    = errors.New("pglimit: no answer to the commit came, so the transaction may or may not be committed")
)

// ErrNotMigrated is an ErrMisconfigured.
var ErrNotMigrated error = misconfigured("pglimit: the database has no pglimit tables of this version in its search_path: run `pglimit migrate up` or call migrations.Up")

// ErrOwners is an ErrMisconfigured that passes no FailOpen: another role may cause it.
var ErrOwners error = misconfigured("pglimit: misconfigured: pglimit's tables in the search_path have several owners: drop those that `pglimit migrate up` did not create, name only its schema in the search_path, or give them one owner by ALTER TABLE … OWNER TO")

// misconfigured is an ErrMisconfigured with its own text.
type misconfigured string

func (m misconfigured) Error() string { return string(m) }

// Is reports whether target is ErrMisconfigured.
func (misconfigured) Is(target error) bool { return target == ErrMisconfigured }

// ErrLocked: another transaction has locked a row for longer than Query.LockWait; for a
// caller, for longer than it could wait.
var ErrLocked = fmt.Errorf("%w: %w: another transaction has locked the key's row", ErrUnavailable, context.DeadlineExceeded)

// ErrReservationLocked is an ErrLocked of a Settle if another transaction has locked the
// reservation, with or without its key's row.
var ErrReservationLocked = fmt.Errorf("%w, or the reservation", ErrLocked)

// ErrKnown: Op.Known reported an answer. Nothing was sent.
var ErrKnown = errors.New("pglimit: answered by a denial that is known")

// ErrAlone: a request that shared a transaction with others was not decided, and has to be
// sent alone.
var ErrAlone = errors.New("pglimit: to be sent alone")

// ErrElsewhere: Do runs on the goroutine of a caller that may leave, and the caller has left or
// the rest would wait for something else. Another goroutine has to call Do again.
var ErrElsewhere = errors.New("pglimit: to be continued by another goroutine")

// ErrBusy: no connection of the pool came free in time. Nothing was sent.
var ErrBusy = fmt.Errorf("%w: no connection of the pool came free in time: give the limiter a separate pool, or let the pool have more connections", ErrOverloaded)

// ErrStarved is added to a timeout if this process was too busy to read an answer.
var ErrStarved = errors.New("this process is too busy to read answers in time: give it more processors, or less to do at once")

// ErrExhausted is added to a timeout if all connections of the pool were in use by others, and
// the request may still be sent when one comes free.
var ErrExhausted = errors.New("no connection of the pool came free in time, and other callers wait for the same statement")

// ErrAnswering is added to a timeout if the database answered other requests of the
// limiter meanwhile: it is slow for this one, but not away.
var ErrAnswering = errors.New("the database answered other requests meanwhile")

// ErrFull: a store in memory has no place for a new key.
var ErrFull = fmt.Errorf("%w: the limiter in memory is full", ErrOverloaded)

// RowError is the error of a TakeMany that failed because of a value in one of its rows.
type RowError struct{ Err error }

// Error returns Err's text.
func (e *RowError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *RowError) Unwrap() error { return e.Err }

// PartError is the error of a Pipeline that was rolled back because one of its calls
// failed. Nothing was decided for any of them. Err is ErrLocked if a row was locked for too
// long.
type PartError struct {
	Index int // of the call
	Err   error
}

// Error returns Err's text.
func (e *PartError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *PartError) Unwrap() error { return e.Err }

// InvalidError is an ErrInvalid about one argument.
type InvalidError struct{ Field, Value, Reason string }

// Error names the argument, its value and the reason.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%v: %s %s: %s", ErrInvalid, e.Field, e.Value, e.Reason)
}

// Is reports whether target is ErrInvalid.
func (*InvalidError) Is(target error) bool { return target == ErrInvalid }

// Invalid returns an InvalidError.
func Invalid(field, value, reason string) error { return &InvalidError{field, value, reason} }

// FullError is an ErrOverloaded: the policy's MaxKeys keys have a row, and this key has none.
type FullError struct {
	Policy  string
	MaxKeys int64
}

// Error says what to do.
func (e *FullError) Error() string {
	return fmt.Sprintf("%v: policy %s has rows for all of its %d keys, and this key has none to block: raise Policy.MaxKeys, or block it by an override",
		ErrOverloaded, Quote(e.Policy), e.MaxKeys)
}

// Is reports whether target is ErrOverloaded.
func (*FullError) Is(target error) bool { return target == ErrOverloaded }

// NoTicket returns the ErrNoTicket of an op.
func NoTicket(op *Op) error {
	return fmt.Errorf("%w: %s was reported before, has ended and counted as failed, or never began", ErrNoTicket, Quote(op.Reservation().Public()))
}

// NoSlot returns the ErrNoSlot of an op.
func NoSlot(op *Op) error {
	return fmt.Errorf("%w: %s was released before, has ended, or was never acquired", ErrNoSlot, Quote(op.Reservation().Public()))
}

// Quote returns a caller's text in quotes, shortened for logs.
func Quote(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.40q… (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}
