package limiter

import (
	"errors"
	"fmt"
)

// Errors that the verbs return, to be told apart with errors.Is. Whatever the
// database said is wrapped too, for errors.As.
var (
	// ErrInvalid: the policy, key, cost or duration is not valid. Nothing was
	// written. It never passes through FailOpen.
	ErrInvalid = errors.New("pglimit: invalid")
	// ErrUnsupported: the verb has no meaning for the policy's algorithm, or
	// not for this kind of limiter.
	ErrUnsupported = errors.New("pglimit: unsupported")
	// ErrUnavailable: the database could not be asked, or not within
	// Config.Timeout, or was not because it has not answered for a while, see
	// Config.BreakAfter. Whether a statement in flight was counted is unknown.
	ErrUnavailable = errors.New("pglimit: database unavailable")
	// ErrOverloaded: too many callers wait for the database already
	// (Config.BatchWaiting). Nothing was consumed.
	ErrOverloaded = errors.New("pglimit: overloaded")
	// ErrNoHold: there is no hold with that ID, or its ttl was over longer than
	// Config.IdempotencyTTL ago. Nothing was changed.
	ErrNoHold = errors.New("pglimit: no such hold")
	// ErrHoldEnded: the hold was settled, with other units, or cancelled before.
	// Nothing was changed.
	ErrHoldEnded = errors.New("pglimit: the hold has ended")
	// ErrClosed: the limiter was closed. It never passes through FailOpen.
	ErrClosed = errors.New("pglimit: limiter is closed")
	// ErrNotMigrated: the tables are not there, or not in the search_path.
	ErrNotMigrated = errors.New("pglimit: the database has no pglimit tables of this version in its search_path: run `pglimit migrate up` or call migrations.Up")
	// ErrRetryTx: the caller's transaction met a concurrent change, a deadlock
	// or a lock timeout (40001, 40P01, 55P03), of which the driver's error tells.
	// Roll it back and run it again.
	ErrRetryTx = errors.New("pglimit: transaction conflict: roll back and run the transaction again")
)

// PolicyError names the field of a Policy that is wrong. It is an ErrInvalid.
type PolicyError struct {
	Field  string // the field's name in Go
	Value  any    // what it holds
	Reason string // what it should hold
}

// Error names field, value and what is expected.
func (e *PolicyError) Error() string {
	if s, ok := e.Value.(string); ok {
		return fmt.Sprintf("pglimit: invalid policy: %s %s: %s", e.Field, quote(s), e.Reason)
	}
	return fmt.Sprintf("pglimit: invalid policy: %s %v: %s", e.Field, e.Value, e.Reason)
}

// Is makes errors.Is(err, ErrInvalid) true.
func (e *PolicyError) Is(target error) bool { return target == ErrInvalid }

// DeniedError is how Wait, which returns nothing else, says no.
type DeniedError struct{ Result Result }

// Error tells the reason and when to try again.
func (e *DeniedError) Error() string {
	if e.Result.RetryAfter == Never {
		return "pglimit: denied: the cost is above the burst"
	}
	return fmt.Sprintf("pglimit: denied (%s): retry after %v", e.Result.Reason, e.Result.RetryAfter)
}

// invalid names what is wrong with an argument.
func invalid(field, value, reason string) error {
	return fmt.Errorf("%w: %s %s: %s", ErrInvalid, field, value, reason)
}

// quote shows a caller's text, cut to a length that a log can bear.
func quote(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%.40q… (%d bytes)", s, len(s))
	}
	return fmt.Sprintf("%q", s)
}

// SQLSTATEs, all of them that mean something here.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	undefinedFunction    = "42883"
	uniqueViolation      = "23505"
	tooManyConnections   = "53300"
	dataException        = "22"  // a class: the value does not suit this database
	constraintViolation  = "23"  // a class
	serverGoes           = "57P" // how those begin that say that the server, or the connection, goes or is not there yet
)

// sqlState is empty unless the server said it. pgx's and lib/pq's errors have
// this method.
func sqlState(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// conflict reports whether running the same statement again may help.
func conflict(err error) bool {
	switch sqlState(err) {
	case serializationFailure, deadlockDetected, lockNotAvailable:
		return true
	}
	return false
}

// dataError reports whether the statement failed for a value in it.
func dataError(err error) bool {
	code := sqlState(err)
	return len(code) == 5 && (code[:2] == dataException || code[:2] == constraintViolation)
}

// translate turns what the driver returned into the errors above.
func translate(err error, inTx bool) error {
	if err == nil || err == errHeld || err == errOtherPeriod {
		return err
	}
	code := sqlState(err)
	switch {
	case inTx && conflict(err):
		return fmt.Errorf("%w: %w", ErrRetryTx, err)
	case code == undefinedTable, code == undefinedColumn, code == undefinedFunction:
		return fmt.Errorf("%w: %w", ErrNotMigrated, err)
	case len(code) == 5 && code[:2] == dataException:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}
