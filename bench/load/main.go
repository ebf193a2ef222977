// Load measures decisions under requests that arrive by a clock: many for one key, and a
// surge on one key while others are used steadily. It starts a PostgreSQL server, prints a
// Markdown page and writes it to a file:
//
//	go run ./load          # in bench/; about six minutes
//	go run ./load -quick   # about 20 seconds; writes no file
//
// An error or a miscount ends it without a report.
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

	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/migrations"
)

// plan is the length of the measurements, and the report's file.
type plan struct {
	Quick          bool
	Rounds         int
	Warmup, Length time.Duration // of each measurement; a surge is as long again
	Out            string        // file for the report; "" for none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, readFlags()); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// readFlags ends the program on wrong flags.
func readFlags() plan {
	p := plan{Rounds: 5, Warmup: time.Second, Length: 6 * time.Second}
	flag.BoolVar(&p.Quick, "quick", false, "measure one round of a second each instead of 5 of 6, and write no file")
	flag.StringVar(&p.Out, "out", "load.md", "file to write the report to, none if empty")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "load: %q: no arguments are taken\n", flag.Arg(0))
		os.Exit(2)
	}
	if p.Quick {
		p.Rounds, p.Warmup, p.Length, p.Out = 1, 500*time.Millisecond, time.Second, ""
	}
	return p
}

// run measures each cell and reports.
func run(ctx context.Context, p plan) (err error) {
	server, err := servers.StartPostgres(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := migrations.Up(ctx, server.Pool); err != nil {
		return err
	}
	if _, err := server.Pool.Exec(ctx, bareTable); err != nil {
		return err
	}
	r := report{plan: p, When: time.Now().UTC(), PostgreSQL: server.Version(), Settings: server.Settings()}
	if r.SyncTime, err = servers.SyncTime(); err != nil {
		return err
	}
	for _, c := range steadyCells() {
		if err := eachRound(ctx, server, p, c.contenders, c.measure); err != nil {
			return err
		}
		r.Steady = append(r.Steady, c)
	}
	surge := newSurge()
	if err := eachRound(ctx, server, p, surge.contenders, surge.measure); err != nil {
		return err
	}
	r.Surge = surge
	text := r.markdown()
	fmt.Print(text)
	if p.Out == "" {
		return nil
	}
	return os.WriteFile(p.Out, []byte(text), 0o644)
}
