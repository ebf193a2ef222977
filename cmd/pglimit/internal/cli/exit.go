// Package cli has the parts of the command line that all subcommands share: exit
// codes, signals, output as text or JSON, and an interruptible standard input.
package cli

import (
	"context"
	"errors"
	"syscall"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

// Exit codes.
const (
	ExitDone     = 0 // allowed, or done
	ExitDenied   = 1 // the limit denied the request, or there is no such row
	ExitUsage    = 2 // wrong flags, arguments or files
	ExitDatabase = 3 // the database is missing, unreachable or refused

	exitSignal = 128 // plus the signal's number, as shells report it
)

// ErrDenied is the error of a command whose answer is no. The answer is on stdout;
// nothing is printed on stderr.
var ErrDenied = errors.New("denied")

// databaseError is an error of the database.
type databaseError struct{ error }

func (e databaseError) Unwrap() error { return e.error }

// DatabaseError marks err as an error of the database; nil stays nil. If a pooler
// caused err, it adds what to do next.
func DatabaseError(err error) error {
	if err == nil {
		return nil
	}
	return databaseError{pooler.Explain(err)}
}

// LimiterError marks an error of a Limiter as an error of the database, unless it
// rejects the request: the user can correct that.
func LimiterError(err error) error {
	for _, rejection := range []error{limiter.ErrInvalid, limiter.ErrUnsupported, limiter.ErrNoReservation, limiter.ErrReservationEnded,
		limiter.ErrNoPolicy, limiter.ErrPolicyChanged} {
		if errors.Is(err, rejection) {
			return err
		}
	}
	return DatabaseError(err)
}

// ExitCode returns the exit code of a command that returned err under ctx.
// silent reports whether to print nothing for it.
//
// An error without a mark is a usage error.
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

// cutShort returns the exit code of a command that could not finish because a
// signal ended ctx or its output was closed.
func cutShort(ctx context.Context, err error) (code int, ok bool) {
	var cause signalError
	var db databaseError // database connections fail with EPIPE too
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
