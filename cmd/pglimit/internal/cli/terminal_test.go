package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

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

func TestInterruptible(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("a line\n", 1000)
	got, err := io.ReadAll(Interruptible(t.Context(), strings.NewReader(text)))
	if err != nil || string(got) != text {
		t.Errorf("got %d bytes of %d, %v", len(got), len(text), err)
	}
}

// TestInterruptibleCancelled: a read ends with its context, though no input comes.
func TestInterruptibleCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, input := io.Pipe()
		defer input.Close()
		ctx, cancel := context.WithCancel(t.Context())
		r := Interruptible(ctx, in)
		read := make(chan error)
		go func() {
			_, err := r.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-read; !errors.Is(err, ErrInterrupted) {
			t.Errorf("got %v, want %v", err, ErrInterrupted)
		}
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, ErrInterrupted) {
			t.Errorf("afterwards: got %v, want %v", err, ErrInterrupted)
		}
	})
}
