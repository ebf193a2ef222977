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

// WithSignals ends ctx at Ctrl-C or SIGTERM, with the signal as its cause. The
// second signal ends the program at once. stop restores the default handling.
//
// A closed pipe becomes an error of the write that met it, so that commands can
// clean up what they began.
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
