package main

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

// TestStage: a terminal sees each ask as it is answered, anything else whole
// lines and no control characters.
func TestStage(t *testing.T) {
	t.Parallel()
	b := demoBurst{Algorithm: limiter.LeakyBucketQueue, Allowed: 1, Delayed: 1, Denied: 1, Results: []limiter.Result{
		{Allowed: true, Level: 1}, {Allowed: true, Level: 2, Delay: time.Second}, {Level: 1.5},
	}}
	const line = "  leaky_bucket_queue     [##...]  1.5  +~-                "
	const end = "  1 allowed, 1 delayed, 1 denied\n"
	for live, want := range map[bool]string{
		false: line + end,
		true:  clearLine + line + clearLine + line + end,
	} {
		var out bytes.Buffer
		s := &stage{w: &out, live: live}
		if err := errors.Join(s.draw(b), s.drawn(b)); err != nil || out.String() != want {
			t.Errorf("live %v: %v, got %q, want %q", live, err, &out, want)
		}
	}
	s := &stage{w: failingWriter{syscall.EPIPE}}
	s.printf("lost")
	err := demoError(s.draw(b))
	if code, _ := cli.ExitCode(t.Context(), err); !errors.Is(err, syscall.EPIPE) || code == cli.ExitDatabase {
		t.Errorf("a lost stage: %v", err)
	}
	if cli.OnTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
}
