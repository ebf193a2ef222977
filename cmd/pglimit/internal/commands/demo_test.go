package commands

import (
	"bytes"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

// TestStage: a terminal shows each answer as it arrives. Other output gets whole
// lines without control characters.
func TestStage(t *testing.T) {
	t.Parallel()
	b := burst{Algorithm: limiter.LeakyBucketQueue}
	for _, r := range []limiter.Result{{Allowed: true, Level: 1}, {Allowed: true, Level: 2, Delay: time.Second}, {Level: 1.5}} {
		b.add(r)
	}
	const line = "  leaky_bucket_queue     [##...]  1.5  +~-                "
	const end = "  1 allowed, 1 delayed, 1 denied\n"
	for live, want := range map[bool]string{
		false: line + end,
		true:  restartLine + line + restartLine + line + end,
	} {
		var out bytes.Buffer
		s := &stage{w: &out, live: live}
		if err := errors.Join(s.draw(b.line()), s.finish(b.line()+b.totals())); err != nil || out.String() != want {
			t.Errorf("live %v: %v, got %q, want %q", live, err, &out, want)
		}
	}
	if cli.OnTerminal(&bytes.Buffer{}) {
		t.Error("a buffer counts as a terminal")
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestStageLost: a failed write is not an error of the database.
func TestStageLost(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "demo", Algorithm: limiter.GCRA, Limit: demoLimit, Period: demoPeriod}
	_, err := sendBurst(t.Context(), limiter.NewMemory(nil), p, "k", &stage{w: failingWriter{syscall.EPIPE}, live: true})
	if code, _ := cli.ExitCode(t.Context(), err); !errors.Is(err, syscall.EPIPE) || code == cli.ExitDatabase {
		t.Errorf("a lost stage: %v", err)
	}
}
