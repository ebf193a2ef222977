package cli

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	ask := func(in io.Reader) (string, error) {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetIn(in)
		cmd.SetErr(&out)
		err := Confirm(cmd, "forget alice?")
		return out.String(), err
	}
	for answer, yes := range map[string]bool{"y\n": true, "YES\n": true, " y \r\n": true, "y": true, "n\n": false, "\n": false, "yesterday\n": false} {
		out, err := ask(strings.NewReader(answer))
		if yes && err != nil || !yes && err != ErrDenied || !strings.HasPrefix(out, "forget alice? [y/N] ") {
			t.Errorf("%q: %v, %q", answer, err, out)
		}
	}
	if _, err := ask(strings.NewReader("")); err == nil || err == ErrDenied || !strings.Contains(err.Error(), "--yes") {
		t.Errorf("no answer: %v", err)
	}
	broken := errors.New("broken")
	if _, err := ask(failing{broken}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
