package main

import "errors"

// The exit codes, for scripts to branch on.
const (
	exitDone     = 0 // allowed, or done
	exitDenied   = 1 // the limit says no
	exitUsage    = 2 // wrong flags, arguments or files
	exitDatabase = 3 // the database is missing, out of reach or refused

	exitInterrupted = 130 // Ctrl-C, as shells tell it
)

// errDenied ends a command whose answer is no. The answer itself is on stdout,
// so nothing is printed for it on stderr.
var errDenied = errors.New("denied")

// databaseError is an error that came out of working with the database.
type databaseError struct{ error }

func (e databaseError) Unwrap() error { return e.error }

// database marks err, which may be nil, as one of the database's.
func database(err error) error {
	if err == nil {
		return nil
	}
	return databaseError{err}
}

// exitCode is the code for what a command returned. What is not marked as
// something else is the user's to put right.
func exitCode(err error) int {
	var db databaseError
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, errDenied):
		return exitDenied
	case errors.As(err, &db):
		return exitDatabase
	}
	return exitUsage
}
