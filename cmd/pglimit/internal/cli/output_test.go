package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestOutputAnswer: JSON escapes the characters that a terminal obeys.
func TestOutputAnswer(t *testing.T) {
	t.Parallel()
	const key = "<\x1b\u007f\u009b\u202e\u2069\u200f\u061c\\é😀"
	const json = "{\n  \"<" + `\u001b\u007f\u009b\u202e\u2069\u200f\u061c\\é😀` + "\": 1\n}\n" // none that a terminal obeys
	for _, c := range []struct {
		json, yes bool
		want      string
		err       error
	}{
		{false, true, "text\n", nil},
		{false, false, "text\n", ErrDenied},
		{true, true, json, nil},
		{true, false, json, ErrDenied},
	} {
		var stdout strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&stdout)
		out := Output{JSON: c.json}
		if err := out.Answer(cmd, c.yes, map[string]int{key: 1}, "text\n"); err != c.err || stdout.String() != c.want {
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
