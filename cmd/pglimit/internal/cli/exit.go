// Package cli has the parts of the command line that all subcommands share: exit
// codes, signals, output as text or JSON, and an interruptible standard input.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
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

// DatabaseError marks err as an error of the database; nil stays nil. Errors of the connection
// get their causes first, each once, and a next step. If a pooler caused err, it adds what to do
// next.
func DatabaseError(err error) error {
	if err == nil {
		return nil
	}
	if failed := (*pgconn.ConnectError)(nil); errors.As(err, &failed) {
		return databaseError{unconnected(failed)}
	}
	return databaseError{pooler.Explain(err)}
}

// LimiterError marks an error of a Limiter as an error of the database, unless it
// rejects the request: the user can correct that.
func LimiterError(err error) error {
	for _, rejection := range []error{limiter.ErrInvalid, limiter.ErrUnsupported, limiter.ErrNoReservation, limiter.ErrReservationEnded, limiter.ErrNoTicket, limiter.ErrNoSlot,
		policies.ErrNoPolicy, policies.ErrChanged} {
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

// Failure is an error of a command as the user sees it. Its JSON is one line on stderr.
type Failure struct {
	// Message is one line.
	Message string `json:"error"`
	// Code is the kind of error: usage, database or interrupted.
	Code string `json:"code"`
	// ExitCode is the command's exit code. 0: the command continues, without a line of
	// its input.
	ExitCode int `json:"exit_code,omitempty"`
	// Line is the number, from 1, of the line of the input with the error; 0: none.
	Line int `json:"line,omitempty"`
	// NextStep is what to do about it, if that is not in Message.
	NextStep string `json:"next_step,omitempty"`
}

// NewFailure returns the Failure of a command that ends with err and exit code code.
func NewFailure(cmd *cobra.Command, err error, code int) Failure {
	f := Failure{Message: message(err), ExitCode: code}
	switch {
	case code == ExitUsage:
		f.Code, f.NextStep = "usage", "see `"+cmd.CommandPath()+" --help`"
	case code > exitSignal:
		f.Code = "interrupted"
	default:
		f.Code = "database"
		var stepping interface{ NextStep() string }
		if errors.As(err, &stepping) {
			f.NextStep = stepping.NextStep()
		}
	}
	return f
}

// Write writes f as one line, as text or as JSON.
func (f Failure) Write(w io.Writer, asJSON bool) {
	if asJSON {
		_ = WriteJSON(w, f, "") // there is no other place for an error
		return
	}
	text := f.Message
	if f.Line > 0 {
		text = fmt.Sprintf("line %d: %s", f.Line, text)
	}
	switch question := strings.HasSuffix(text, "?"); {
	case f.NextStep != "" && question:
		text += " S" + f.NextStep[1:]
	case f.NextStep != "":
		text += "; " + f.NextStep
	}
	fmt.Fprintf(w, "pglimit: %s\n", printable.Escape(text))
}

// BadLine writes the error of the input's line number to stderr. Number 0 is for an error of
// several lines.
func (o *Output) BadLine(cmd *cobra.Command, number int, err error) {
	Failure{Message: message(err), Code: "usage", Line: number}.Write(cmd.ErrOrStderr(), o.JSON)
}

// WantsJSON reports whether args, the arguments of a command line, have --json. It is for
// a command line whose flags cannot be parsed.
func WantsJSON(args []string) (wanted bool) {
	for _, a := range args {
		value, assigned := strings.CutPrefix(a, "--json=")
		switch {
		case a == "--":
			return wanted
		case a == "--json":
			wanted = true
		case assigned:
			wanted, _ = strconv.ParseBool(value)
		}
	}
	return wanted
}

// message returns an error in one line, without the name of the program.
func message(err error) string {
	text := strings.TrimPrefix(strings.ReplaceAll(err.Error(), ": pglimit: ", ": "), "pglimit: ")
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
