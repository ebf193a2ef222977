package main

import (
	"syscall"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
)

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
	}{{syscall.EPIPE, 141, true}, {syscall.ENOSPC, cli.ExitUsage, false}} {
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
