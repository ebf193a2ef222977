package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// OnTerminal reports whether w is a terminal. A reader of Interruptible is one if what it
// reads is.
func OnTerminal(w any) bool {
	if r, ok := w.(*interruptibleReader); ok {
		w = r.in
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Confirm asks a question on stderr and reads the answer from the command's standard
// input. It returns nil for y or yes, ErrDenied for another answer, and an error with the
// next step if there is none.
func Confirm(cmd *cobra.Command, question string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	answer = strings.ToLower(strings.TrimSpace(answer))
	switch {
	case answer == "y" || answer == "yes":
		return nil
	case errors.Is(err, io.EOF) && answer == "":
		fmt.Fprintln(cmd.ErrOrStderr())
		return errors.New("there was no answer, and nothing was changed: pass --yes to go on without a question")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	}
	fmt.Fprintln(cmd.ErrOrStderr(), "nothing was changed")
	return ErrDenied
}

// CanAsk reports whether a person can see a question of cmd and answer it.
func CanAsk(cmd *cobra.Command) bool {
	return OnTerminal(cmd.InOrStdin()) && OnTerminal(cmd.ErrOrStderr())
}

// ErrInterrupted is the error of a command that Ctrl-C stopped.
var ErrInterrupted = errors.New("interrupted")

// Interruptible returns a reader of in whose reads fail with ErrInterrupted once
// ctx ends. A read of a terminal or a pipe cannot be cancelled: it continues in
// the background and its bytes are lost.
func Interruptible(ctx context.Context, in io.Reader) io.Reader {
	return &interruptibleReader{ctx: ctx, in: in, done: make(chan readResult, 1)}
}

type interruptibleReader struct {
	ctx  context.Context
	in   io.Reader
	buf  []byte
	done chan readResult
}

type readResult struct {
	n   int
	err error
}

func (r *interruptibleReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, ErrInterrupted
	}
	// Do not read into p: the caller may reuse it once Read has returned.
	if len(r.buf) < len(p) {
		r.buf = make([]byte, len(p))
	}
	buf := r.buf[:len(p)]
	go func() {
		n, err := r.in.Read(buf)
		r.done <- readResult{n, err}
	}()
	select {
	case got := <-r.done:
		copy(p, buf[:got.n])
		return got.n, got.err
	case <-r.ctx.Done():
		return 0, ErrInterrupted
	}
}

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal os.Signal }

func (e signalError) Error() string { return e.signal.String() }

// WithSignals returns a context that Ctrl-C or SIGTERM cancels, with the signal as
// its cause. A second signal ends the program immediately. stop restores the
// default handling.
//
// A closed pipe becomes an error of the write, so that commands can clean up.
func WithSignals(parent context.Context) (ctx context.Context, stop func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(signalError{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel(nil) }
}
