// Package exec runs statements on connections of a pool of pgx or database/sql, or in a
// caller's transaction. It retries after conflicts, pipelines statements, and has a
// circuit breaker.
package exec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pglimit/pglimit/internal/store"
)

// The SQLSTATEs that matter here, or their prefixes.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	undefinedFunction    = "42883"
	uniqueViolation      = "23505"
	invalidText          = "22P02"
	tooManyConnections   = "53300"
	completionUnknown    = "40003"
	idleInTransaction    = "25P03"
	dataException        = "22"  // a class: this database cannot take the value
	constraintViolation  = "23"  // a class
	connectionException  = "08"  // a class
	internalError        = "XX"  // a class
	serverGoes           = "57P" // the server or the connection shuts down, or is not ready yet
)

// ErrOtherPeriod: a statement wrote nothing, because the database's clock is in a
// calendar period that the statement did not get.
var ErrOtherPeriod = fmt.Errorf("%w: its clock is in another period than this machine's", store.ErrUnavailable)

// noConnection is the error of a wait for a connection of the pool. It says nothing about
// the database, so it does not count for the circuit breaker.
type noConnection struct {
	error
	crowded bool // all were in use by others than the limiter
}

func (n *noConnection) Unwrap() error { return n.error }

// sqlState returns the SQLSTATE of an error that the server sent, else "". The errors of
// pgx and lib/pq have this method.
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

// again reports whether running one of our own transactions again may help. If its client
// was idle for too long, the server has rolled it back, even if a commit was on its way.
func again(err error) bool { return conflict(err) || sqlState(err) == idleInTransaction }

// IsConflict reports whether running the caller's transaction again may help.
func IsConflict(err error) bool { return conflict(err) || stale(err) }

// SQLState returns the SQLSTATE of an error that the server sent, else "".
func SQLState(err error) string { return sqlState(err) }

// LosesAnswer reports whether an error of this SQLSTATE may come after the statement has
// taken effect: the server or the connection ended, or it does not know itself.
func LosesAnswer(code string) bool {
	return strings.HasPrefix(code, serverGoes) || strings.HasPrefix(code, connectionException) ||
		strings.HasPrefix(code, internalError) || code == completionUnknown
}

// IsLockTimeout reports whether a row was locked for longer than lock_timeout.
func IsLockTimeout(err error) bool { return sqlState(err) == lockNotAvailable }

// IsDuplicate reports whether a unique index refused a row.
func IsDuplicate(err error) bool { return sqlState(err) == uniqueViolation }

// IsDataError reports whether the statement failed because of a value in it.
func IsDataError(err error) bool {
	code := sqlState(err)
	return len(code) == 5 && (code[:2] == dataException || code[:2] == constraintViolation)
}

// Translate returns a driver's error as one of the store's errors.
func Translate(err error, inTx bool) error {
	if err == nil || err == store.ErrLocked || err == store.ErrAlone || err == store.ErrElsewhere || err == errRecorded || err == ErrOtherPeriod || errors.Is(err, store.ErrOwners) {
		return err
	}
	if n := (*noConnection)(nil); errors.As(err, &n) && n.crowded {
		return fmt.Errorf("%w: %w", store.ErrBusy, err)
	}
	code := sqlState(err)
	switch {
	case inTx && (conflict(err) || stale(err)):
		return fmt.Errorf("%w: %w", store.ErrRetryTx, err)
	case code == tooManyConnections:
		return fmt.Errorf("%w: the server has no connection left for this role: end the sessions that others keep open, or raise max_connections or the role's CONNECTION LIMIT: %w", store.ErrOverloaded, err)
	case code == undefinedTable, code == undefinedColumn, code == undefinedFunction:
		return fmt.Errorf("%w: %w", store.ErrNotMigrated, err)
	case len(code) == 5 && code[:2] == dataException:
		return fmt.Errorf("%w: %w", store.ErrInvalid, err)
	}
	if refused := misconfigured(err, inTx); refused != nil {
		return refused
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}
