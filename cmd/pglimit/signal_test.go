package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
)

func TestEnded(t *testing.T) {
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
		{"denied in spite of a signal", signalled(os.Interrupt), errDenied, 0, false},
		{"Ctrl-C", signalled(os.Interrupt), context.Canceled, 130, true},
		{"Ctrl-C met in the database", signalled(os.Interrupt), database(context.Canceled), 130, true},
		{"SIGTERM", signalled(syscall.SIGTERM), context.Canceled, 143, true},
		{"closed pipe", t.Context(), fmt.Errorf("print: %w", pipe), 141, true},
		{"the database's connection broke", t.Context(), database(pipe), 0, false},
	} {
		if code, ok := ended(c.ctx, c.err); code != c.code || ok != c.ok {
			t.Errorf("%s: got %d, %v; want %d, %v", c.name, code, ok, c.code, c.ok)
		}
	}
}

// failingWriter is a stdout that fails.
type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestClosedPipeIsSilent: head has seen enough, which is nobody's mistake; a
// full disk is told.
func TestClosedPipeIsSilent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		code   int
		silent bool
	}{{syscall.EPIPE, 141, true}, {syscall.ENOSPC, exitUsage, false}} {
		var stderr countingWriter
		code := run(t.Context(), []string{"migrate", "print"}, nil, failingWriter{c.err}, &stderr)
		if code != c.code || (stderr == 0) != c.silent {
			t.Errorf("%v: exit code %d, %d bytes on stderr", c.err, code, stderr)
		}
	}
}

type countingWriter int

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

func TestBuilt(t *testing.T) {
	t.Parallel()
	info := &debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "v0.1.0"},
		Settings: []debug.BuildSetting{{Key: "vcs", Value: "git"}, {Key: "vcs.revision", Value: "abc"}}}
	if got, want := built(info, true).text(), "pglimit v0.1.0 (abc)\ngo1.26.0\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := built(&debug.BuildInfo{GoVersion: "go1.26.0"}, true); got.Version != "(devel)" {
		t.Errorf("without a version: %+v", got)
	}
	if got := built(nil, false); got.Version != "unknown" || got.Go != "unknown" {
		t.Errorf("without any information: %+v", got)
	}
}
