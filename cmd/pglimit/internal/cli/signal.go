package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

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
