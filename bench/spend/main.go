// Spend measures limits that commit with an application's data: a spend in a transaction,
// and several limits at once, each compared with bare upserts that count and do not limit.
// It starts a PostgreSQL server, prints a Markdown section and writes it to a file:
//
//	go run ./spend          # in bench/; about six minutes
//	go run ./spend -quick   # half a minute; writes no file
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
	Warmup, Length time.Duration // of each contender in each round
	Out            string        // file for the report; "" for none
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, readFlags()); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "spend:", err)
		os.Exit(1)
	}
}

// readFlags ends the program on wrong flags.
func readFlags() plan {
	p := plan{Rounds: 5, Warmup: time.Second, Length: 6 * time.Second}
	flag.BoolVar(&p.Quick, "quick", false, "measure one round of 2 seconds each instead of 5 of 6, and write no file")
	flag.StringVar(&p.Out, "out", "spend.md", "file to write the report to, none if empty")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "spend: %q: no arguments are taken\n", flag.Arg(0))
		os.Exit(2)
	}
	if p.Quick {
		p.Rounds, p.Warmup, p.Length, p.Out = 1, 500*time.Millisecond, 2*time.Second, ""
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
	if _, err := server.Pool.Exec(ctx, tables); err != nil {
		return err
	}
	r := report{plan: p, When: time.Now().UTC(), PostgreSQL: server.Version(), Settings: server.Settings()}
	if r.Trips, err = spendTrips(ctx, server.Pool.Config()); err != nil {
		return err
	}
	for _, c := range cells() {
		if err := c.measure(ctx, server, p); err != nil {
			return fmt.Errorf("%s: %w", c.What, err)
		}
		r.Cells = append(r.Cells, c)
	}
	text := r.markdown()
	fmt.Print(text)
	if p.Out == "" {
		return nil
	}
	return os.WriteFile(p.Out, []byte(text), 0o644)
}
