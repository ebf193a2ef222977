package main

import (
	"context"
	"errors"
	"os"
	"syscall"

	"github.com/pglimit/pglimit/internal/pooler"
)

// The exit codes, for scripts to branch on.
const (
	exitDone     = 0 // allowed, or done
	exitDenied   = 1 // the limit says no, or there is no such row
	exitUsage    = 2 // wrong flags, arguments or files
	exitDatabase = 3 // the database is missing, out of reach or refused

	exitSignal = 128 // and the signal's number: what a shell says of it
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string { return e.signal.String() }

// errDenied ends a command whose answer is no. The answer itself is on stdout,
// so nothing is printed for it on stderr.
var errDenied = errors.New("denied")

// databaseError is an error that came out of working with the database.
type databaseError struct{ error }

func (e databaseError) Unwrap() error { return e.error }

// database marks err, which may be nil, as one of the database's. An error that
// a pooler causes gets the next step.
func database(err error) error {
	if err == nil {
		return nil
	}
	return databaseError{pooler.Explain(err)}
}

// ended returns the code of a command that did not end by itself: a signal
// ended ctx, or nobody reads its output any more.
func ended(ctx context.Context, err error) (code int, ok bool) {
	var cause signalError
	var db databaseError // whose own connections break too
	switch {
	case err == nil, errors.Is(err, errDenied):
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

// exitCode is the code for what a command returned. What is not marked as
// something else is the user's to put right.
func exitCode(err error) int {
	var db databaseError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errDenied):
		return exitDenied
	case errors.As(err, &db):
		return exitDatabase
	}
	return exitUsage
}
