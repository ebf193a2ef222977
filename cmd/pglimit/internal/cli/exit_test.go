package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

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
