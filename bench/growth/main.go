// Growth measures decisions as a table grows: with few and with many rows, under an
// attacker who sends a new key on every call, and under Zipf traffic while the janitor
// runs. It starts a PostgreSQL server, prints a Markdown section and writes it to a file:
//
//	go run ./growth          # in bench/; less than half an hour
//	go run ./growth -quick   # less than a minute; writes no file
//
// An error ends it without a report.
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
		fmt.Fprintln(os.Stderr, "growth:", err)
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

	text, err := measure(ctx, p)
	if err == nil {
		fmt.Print(text)
		if p.Out != "" {
			err = os.WriteFile(p.Out, []byte(text), 0o644)
		}
	}
	var ended signalError
	switch {
	case err == nil:
		return 0
	case errors.As(context.Cause(ctx), &ended):
		fmt.Fprintln(os.Stderr, "growth:", ended)
		return exitSignal + int(ended.Signal)
	}
	fmt.Fprintln(os.Stderr, "growth:", err)
	return exitFailed
}

// measure runs all measurements and returns the report.
func measure(ctx context.Context, p plan) (text string, err error) {
	progress("starting PostgreSQL")
	s, err := startServer(ctx)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()

	r := report{plan: p}
	if r.Environment, err = s.describe(ctx); err != nil {
		return "", err
	}
	if r.Sizes, err = measureRows(ctx, s, p); err != nil {
		return "", err
	}
	if r.Attack, err = p.Attack.attack().run(ctx, s); err != nil {
		return "", err
	}
	if r.Zipf, err = p.Zipf.zipf().run(ctx, s); err != nil {
		return "", err
	}
	return r.markdown(), nil
}

// progress prints the progress.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "growth: %s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
