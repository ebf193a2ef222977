package cli

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
)

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
