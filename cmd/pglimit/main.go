// Command pglimit sets up and works with pglimit's rate limits in PostgreSQL.
// `pglimit help` tells what it can do.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // for --time-zone where the system has no zones
)

func main() {
	// A closed pipe is then an error of the write that met it, so that commands
	// can put away what they began.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := withSignals(context.Background())
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// withSignals ends ctx at Ctrl-C or SIGTERM, with the signal as its cause. The
// second one ends the program as if nobody listened.
func withSignals(parent context.Context) (ctx context.Context, stop func()) {
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
