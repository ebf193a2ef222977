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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	p, err := parsePlan(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	var o *outcome
	if err == nil {
		o, err = soak(ctx, p)
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	fmt.Print(o.markdown())
	if !o.passed() {
		os.Exit(1)
	}
}

// progress prints the progress.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "soak: %s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
