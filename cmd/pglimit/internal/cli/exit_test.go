package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	plain := errors.New("plain")
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{DatabaseError(nil), 0},
		{ErrDenied, 1},
		{fmt.Errorf("wrapped: %w", ErrDenied), 1},
		{plain, 2},
		{DatabaseError(plain), 3},
		{fmt.Errorf("wrapped: %w", DatabaseError(plain)), 3},
		{errors.Join(DatabaseError(plain), nil), 3},
		{LimiterError(plain), 3},
		{LimiterError(fmt.Errorf("wrapped: %w", limiter.ErrInvalid)), 2},
	} {
		if got, silent := ExitCode(t.Context(), c.err); got != c.want || silent != (got <= ExitDenied) {
			t.Errorf("%v: got %d, silent %v; want %d", c.err, got, silent, c.want)
		}
	}
	if !errors.Is(DatabaseError(plain), plain) {
		t.Error("the cause is lost")
	}
}

func TestExitCodeCutShort(t *testing.T) {
	t.Parallel()
	signalled := func(s os.Signal) context.Context {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(signalError{s})
		return ctx
	}
	pipe := &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
	for _, c := range []struct {
		name string
		ctx  context.Context
		err  error
		code int
		ok   bool
	}{
		{"done", t.Context(), nil, 0, false},
		{"failed", t.Context(), errors.New("failed"), 0, false},
		{"done in spite of a signal", signalled(os.Interrupt), nil, 0, false},
		{"denied in spite of a signal", signalled(os.Interrupt), ErrDenied, 0, false},
		{"Ctrl-C", signalled(os.Interrupt), context.Canceled, 130, true},
		{"Ctrl-C met in the database", signalled(os.Interrupt), DatabaseError(context.Canceled), 130, true},
		{"SIGTERM", signalled(syscall.SIGTERM), context.Canceled, 143, true},
		{"closed pipe", t.Context(), fmt.Errorf("print: %w", pipe), 141, true},
		{"the database's connection broke", t.Context(), DatabaseError(pipe), 0, false},
	} {
		if code, ok := cutShort(c.ctx, c.err); code != c.code || ok != c.ok {
			t.Errorf("%s: got %d, %v; want %d, %v", c.name, code, ok, c.code, c.ok)
		}
	}
}

// TestFailureWrite: an error is one line of text or JSON, without characters that a
// terminal obeys.
func TestFailureWrite(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "pglimit"}
	for _, c := range []struct {
		err        error
		code       int
		text, json string
	}{
		{errors.New("pglimit: no: pglimit: such <thing>"), ExitUsage,
			"pglimit: no: such <thing>; see `pglimit --help`", `{"error":"no: such <thing>","code":"usage","exit_code":2,"next_step":"see ` + "`pglimit --help`" + `"}`},
		{errors.New("did you mean this?"), ExitUsage,
			"pglimit: did you mean this? See `pglimit --help`", `{"error":"did you mean this?","code":"usage","exit_code":2,"next_step":"see ` + "`pglimit --help`" + `"}`},
		{errors.New("connect:\n  one\n  two"), ExitDatabase, "pglimit: connect: one; two", `{"error":"connect: one; two","code":"database","exit_code":3}`},
		{errors.New("connect:\n\thost: refused\n\thost: refused"), ExitDatabase, "pglimit: connect: host: refused", `{"error":"connect: host: refused","code":"database","exit_code":3}`},
		{errors.New("no key \x1b[2J\x9b\u009b\u202e"), ExitDatabase, `pglimit: no key \u001b[2J�\u009b\u202e`, `{"error":"no key \u001b[2J\ufffd\u009b\u202e","code":"database","exit_code":3}`},
		{errors.New("interrupted"), exitSignal + int(syscall.SIGTERM), "pglimit: interrupted", `{"error":"interrupted","code":"interrupted","exit_code":143}`},
	} {
		var text, json strings.Builder
		f := NewFailure(cmd, c.err, c.code)
		f.Write(&text, false)
		f.Write(&json, true)
		if text.String() != c.text+"\n" || json.String() != c.json+"\n" {
			t.Errorf("%q: got %s and %s", c.err, &text, &json)
		}
	}
}

// TestCauseOf: a name that no server knows. The other causes are those of real connections.
func TestCauseOf(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("hostname resolving error: %w", &net.DNSError{Err: "no such host", Name: "db", Server: "192.0.2.1:53", IsNotFound: true})
	if cause, next := causeOf(err); cause != "no such host db" || next != "correct the host in DATABASE_URL" {
		t.Errorf("%s; %s", cause, next)
	}
}

func TestWantsJSON(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{
		"":                           false,
		"allow k":                    false,
		"allow k --json":             true,
		"--json allow --no":          true,
		"allow --json=true":          true,
		"allow --json=1 k":           true,
		"allow --json=false":         false,
		"allow --json --json=false":  false,
		"allow -- --json":            false,
		"allow --json -- --json=off": true,
		"allow --jsonx":              false,
	} {
		if got := WantsJSON(strings.Fields(args)); got != want {
			t.Errorf("%s: got %v", args, got)
		}
	}
}
