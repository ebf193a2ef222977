// Command bench compares pglimit with a bare upsert, Redis and other limiters, one after
// the other on one machine, and writes a table and a chart. It starts PostgreSQL and Redis
// by itself. `make bench` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/pglimit/pglimit/bench/report"
)

// options are the flags.
type options struct {
	quick    bool
	rounds   int
	duration time.Duration
	warmup   time.Duration
	out      string
	keys     int // how many, where there is not one
	selection
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, readFlags()); err != nil {
		if ctx.Err() != nil {
			err = errors.New("interrupted")
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		fmt.Fprintln(os.Stderr, "bench: no table, as not every contender came through")
		os.Exit(1)
	}
}

// readFlags ends the program on wrong flags.
func readFlags() options {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "a look within a minute: one short round, fewer keys and callers, no files")
	flag.IntVar(&o.rounds, "rounds", 5, "how often each contender has its turn in each cell")
	flag.DurationVar(&o.duration, "duration", 850*time.Millisecond, "for how long, each time")
	flag.StringVar(&o.out, "out", ".", "directory for results.md and results.svg")
	flag.Func("only", "parts to measure, separated by commas: "+strings.Join(parts, ", ")+" (default all); writes no files", o.setParts)
	flag.Func("contenders", "contenders whose name matches this regular expression (default all); writes no files", o.setContenders)
	flag.Func("callers", "numbers of callers, separated by commas (default all); writes no files", o.setCallers)
	flag.Parse()
	o.warmup, o.keys = 200*time.Millisecond, 100_000
	if o.quick {
		o.rounds, o.duration, o.warmup, o.keys = 1, 150*time.Millisecond, 50*time.Millisecond, 10_000
	}
	if o.rounds < 1 || o.duration <= 0 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "bench: wrong arguments: -rounds and -duration are positive, and nothing but flags is taken")
		flag.Usage()
		os.Exit(2)
	}
	return o
}

// run measures and prints the page. If it is a full run, it writes the page and its chart
// to files.
func run(ctx context.Context, o options) error {
	r, err := benchmark(ctx, o)
	if err != nil {
		return err
	}
	if o.quick || o.partial() {
		return r.Markdown(os.Stdout, "")
	}
	var page, chart strings.Builder
	if err := errors.Join(r.Markdown(&page, "results.svg"), r.Chart(&chart)); err != nil {
		return err
	}
	fmt.Print(page.String())
	return errors.Join(
		write(o.out, "results.md", page.String()),
		write(o.out, "results.svg", chart.String()))
}

func write(dir, name, text string) error {
	return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)
}

// benchmark starts the servers, runs all cells, and stops the servers.
func benchmark(ctx context.Context, o options) (_ *report.Run, err error) {
	b, err := start(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.checkExact(ctx); err != nil {
		return nil, err
	}
	if err := b.preload(ctx); err != nil {
		return nil, err
	}
	for _, w := range b.workloads() {
		if err := b.runWorkload(ctx, w); err != nil {
			return nil, err
		}
	}
	for _, w := range b.logWorkloads() {
		if err := b.runLogs(ctx, w); err != nil {
			return nil, err
		}
	}
	if err := b.cachedDenial(ctx); err != nil {
		return nil, err
	}
	return &b.report, nil
}
