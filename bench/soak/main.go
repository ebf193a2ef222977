// Soak runs mixed traffic over keys that come and go, with the janitor running, and checks
// that nothing grows: memory, rows, bytes, goroutines and the time of a decision. It starts
// a PostgreSQL server, prints a line every ten seconds and a Markdown report at the end:
//
//	go run ./soak          # in bench/; a warm-up and ten minutes
//	go run ./soak -quick   # less than a minute
//
// It exits with 1 if a verdict fails.
//
// # Its clock
//
// The janitor deletes a row within an hour after it became empty. To see rows of all ages
// end within ten minutes, the limiter and the janitor share a clock that runs 120 times as
// fast (Config.Now): an hour passes in 30 seconds, and a soak of ten minutes covers 20
// hours. The rule itself is unchanged. Durations of requests, and all figures per second,
// are by the real clock.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The exit codes: for a signal 128 plus its number.
const (
	exitFailed = 1
	exitUsage  = 2
	exitSignal = 128
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ syscall.Signal }

func (e signalError) Error() string { return "ended by a signal: " + e.Signal.String() }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	p, err := parsePlan(args, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		return exitUsage
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		if s, ok := (<-signals).(syscall.Signal); ok {
			cancel(signalError{s})
		}
	}()

	o, err := soak(ctx, p)
	var ended signalError
	switch {
	case errors.As(context.Cause(ctx), &ended):
		fmt.Fprintln(os.Stderr, "soak:", ended)
		return exitSignal + int(ended.Signal)
	case err != nil:
		fmt.Fprintln(os.Stderr, "soak:", err)
		return exitFailed
	}
	if _, err := fmt.Print(o.markdown()); err != nil || !o.passed() {
		return exitFailed
	}
	return 0
}

// progress prints the progress.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
