// Command bench compares pglimit with a bare upsert, Redis and other limiters, and measures
// spends, requests by a clock, leases, growing tables and the servers, one after the other on one
// machine. It starts PostgreSQL and Redis by itself, and writes a page and a chart.
// With -soak it instead looks for what grows. `make bench` and `make soak` run it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/pglimit/pglimit/bench/contender"
	"github.com/pglimit/pglimit/bench/soak"
)

// options are the flags.
type options struct {
	quick  bool
	soak   bool
	rounds int
	only   *regexp.Regexp // cells to measure; nil for all
}

// pace is the length of a measurement.
type pace struct{ warmup, duration time.Duration }

// short is the pace where many contenders take turns, long that of the others.
func (o options) short() pace {
	if o.quick {
		return pace{50 * time.Millisecond, 150 * time.Millisecond}
	}
	return pace{200 * time.Millisecond, 850 * time.Millisecond}
}

func (o options) long() pace {
	if o.quick {
		return pace{100 * time.Millisecond, time.Second}
	}
	return pace{time.Second, 6 * time.Second}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o := readFlags()
	do := run
	if o.soak {
		do = runSoak
	}
	if err := do(ctx, o); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// runSoak prints the soak's report, and returns an error if anything grew.
func runSoak(ctx context.Context, o options) error {
	outcome, err := soak.Run(ctx, o.quick)
	if err != nil {
		return err
	}
	fmt.Print(outcome.Markdown())
	if !outcome.Passed() {
		return errors.New("something grew: see the verdicts that failed")
	}
	return nil
}

// readFlags ends the program on wrong flags.
func readFlags() options {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "one short round, smaller tables, no files: a few minutes")
	flag.BoolVar(&o.soak, "soak", false, "instead of comparing, run mixed traffic and the janitor for twelve minutes, and fail if anything grows; with -quick half a minute")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each cell is measured")
	flag.Func("only", "cells whose section/contender/setting contains one of these regular expressions, separated by commas, such as growth,load,hot/batch (default all); writes no file but docs/leases.svg, if leases/a burst is among them", func(list string) (err error) {
		o.only, err = regexp.Compile(strings.ReplaceAll(list, ",", "|"))
		return err
	})
	flag.Parse()
	if o.quick {
		o.rounds = 1
	}
	if o.rounds < 1 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench: wrong arguments: -rounds is positive, and only flags are accepted")
		flag.Usage()
		os.Exit(2)
	}
	return o
}

// run measures all parts and prints the page. If it is a full run, it writes the page and
// its chart to files in the current directory, which is bench/, and the picture of leases to docs/.
func run(ctx context.Context, o options) (err error) {
	b := newBench(o)
	parts := b.parts()
	if b.cells == 0 {
		return errors.New("nothing to measure: -only matches no cell")
	}
	progress("starting PostgreSQL and Redis; %d measurements", b.cells)
	if b.env, err = contender.NewEnv(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.env.Close()) }()
	if err := b.facts(); err != nil {
		return err
	}
	for _, p := range parts {
		if err := b.measure(ctx, p); err != nil {
			return fmt.Errorf("no table, as not every cell was measured: %w", err)
		}
	}
	if b.picture != "" && !o.quick {
		if err := os.WriteFile("../docs/leases.svg", []byte(b.picture), 0o644); err != nil {
			return err
		}
	}
	if o.quick || o.only != nil {
		fmt.Print(b.report.Markdown(""))
		return nil
	}
	page := b.report.Markdown("results.svg")
	fmt.Print(page)
	return errors.Join(os.WriteFile("results.md", []byte(page), 0o644), os.WriteFile("results.svg", []byte(b.report.Chart()), 0o644))
}
