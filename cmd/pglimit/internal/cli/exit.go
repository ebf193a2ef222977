// Package cli has what every subcommand needs of the command line: exit codes,
// signals, output as text or JSON, and an interruptible standard input.
package cli

import (
	"context"
	"errors"
	"syscall"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

// The exit codes, for scripts to branch on.
const (
	ExitDone     = 0 // allowed, or done
	ExitDenied   = 1 // the limit denied the request, or there is no such row
	ExitUsage    = 2 // wrong flags, arguments or files
	ExitDatabase = 3 // the database is missing, unreachable or refused

	exitSignal = 128 // plus the signal's number, as shells report it
)

// ErrDenied ends a command whose answer is no. The answer itself is on stdout,
// so nothing is printed for it on stderr.
var ErrDenied = errors.New("denied")

// databaseError is an error that came from working with the database.
type databaseError struct{ error }

func (e databaseError) Unwrap() error { return e.error }

// DatabaseError marks err as the database's; nil stays nil. An error that a
// pooler causes gets the next step added.
func DatabaseError(err error) error {
	if err == nil {
		return nil
	}
	return databaseError{pooler.Explain(err)}
}

// LimiterError marks what a Limiter returned as the database's error, unless it
// rejects the request: such an error is the user's to correct.
func LimiterError(err error) error {
	for _, rejection := range []error{limiter.ErrInvalid, limiter.ErrUnsupported, limiter.ErrNoReservation, limiter.ErrReservationEnded} {
		if errors.Is(err, rejection) {
			return err
		}
	}
	return DatabaseError(err)
}

// ExitCode returns the exit code of a command that returned err under ctx.
// silent reports whether nothing is to be printed for it.
//
// An error without a mark is the user's to correct.
func ExitCode(ctx context.Context, err error) (code int, silent bool) {
	if code, ok := cutShort(ctx, err); ok {
		return code, code == exitSignal+int(syscall.SIGPIPE) // no reader is left
	}
	var db databaseError
	switch {
	case err == nil:
		return ExitDone, true
	case errors.Is(err, ErrDenied):
		return ExitDenied, true
	case errors.As(err, &db):
		return ExitDatabase, false
	}
	return ExitUsage, false
}

// cutShort returns the code of a command that could not finish: a signal ended
// ctx, or the reader of its output is gone.
func cutShort(ctx context.Context, err error) (code int, ok bool) {
	var cause signalError
	var db databaseError // its own connections break with EPIPE too
	switch {
	case err == nil, errors.Is(err, ErrDenied):
		return 0, false
	case errors.Is(err, syscall.EPIPE) && !errors.As(err, &db):
		return exitSignal + int(syscall.SIGPIPE), true
	case errors.As(context.Cause(ctx), &cause):
		if n, ok := cause.signal.(syscall.Signal); ok {
			return exitSignal + int(n), true
		}
		return exitSignal + int(syscall.SIGINT), true
	}
	return 0, false
}
