package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOutputAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		json, yes bool
		want      string
		err       error
	}{
		{false, true, "text\n", nil},
		{false, false, "text\n", ErrDenied},
		{true, true, "{\n  \"a\": 1\n}\n", nil},
		{true, false, "{\n  \"a\": 1\n}\n", ErrDenied},
	} {
		var stdout strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&stdout)
		out := Output{JSON: c.json}
		if err := out.Answer(cmd, c.yes, map[string]int{"a": 1}, "text\n"); err != c.err || stdout.String() != c.want {
			t.Errorf("%+v: got %q, %v", c, &stdout, err)
		}
	}
}

// TestOutputAnswerLost: an answer that could not be written is not a denial.
func TestOutputAnswerLost(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	cmd := &cobra.Command{}
	cmd.SetOut(failingWriter{full})
	if err := new(Output).Answer(cmd, false, nil, "text\n"); err != full {
		t.Errorf("got %v, want %v", err, full)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
