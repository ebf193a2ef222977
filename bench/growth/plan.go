package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// plan is what one run measures, and for how long.
type plan struct {
	Quick  bool
	Rows   rowCounts // fewest first
	Rounds int
	Warm   time.Duration // before each cell
	Cell   time.Duration
	Attack pace
	Zipf   pace
	Out    string // file for the report; "" for none
}

// pace is the length of a soak, and how fast its rows expire and are deleted.
type pace struct {
	Length, Every    time.Duration
	Period, Interval time.Duration // the policy's, the janitor's
}

// zipfKeys and zipfS are the parameters of the Zipf traffic.
const (
	zipfKeys = 1_000_000
	zipfS    = 1.1
)

var full = plan{
	Rows: rowCounts{10_000, 1_000_000, 10_000_000}, Rounds: 5, Warm: 3 * time.Second, Cell: 10 * time.Second,
	Attack: pace{Length: time.Minute, Every: 5 * time.Second, Period: 5 * time.Second, Interval: time.Second},
	Zipf:   pace{Length: 10 * time.Minute, Every: time.Minute, Period: time.Minute, Interval: time.Minute},
	Out:    "growth.md",
}

var quick = plan{
	Quick: true,
	Rows:  rowCounts{10_000, 100_000}, Rounds: 3, Warm: 250 * time.Millisecond, Cell: 750 * time.Millisecond,
	Attack: pace{Length: 5 * time.Second, Every: time.Second, Period: time.Second, Interval: 500 * time.Millisecond},
	Zipf:   pace{Length: 10 * time.Second, Every: 2 * time.Second, Period: 2 * time.Second, Interval: time.Second},
}

// parsePlan reads the command line.
func parsePlan(args []string, stderr io.Writer) (plan, error) {
	p, err := full.with(args, stderr)
	if err == nil && p.Quick {
		return quick.with(args, stderr) // with its defaults for the other flags
	}
	return p, err
}

// with returns the plan as changed by flags.
func (p plan) with(args []string, stderr io.Writer) (plan, error) {
	flags := flag.NewFlagSet("growth", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&p.Quick, "quick", p.Quick, "end within a minute: fewer rows, shorter, no file")
	flags.Var(&p.Rows, "rows", "sizes of the table, in rows, fewest first")
	flags.IntVar(&p.Rounds, "rounds", p.Rounds, "rounds over all sizes")
	flags.DurationVar(&p.Cell, "cell", p.Cell, "length of one measurement of a round")
	flags.DurationVar(&p.Attack.Length, "attack", p.Attack.Length, "length of the attack")
	flags.DurationVar(&p.Zipf.Length, "zipf", p.Zipf.Length, "length of the Zipf traffic")
	flags.StringVar(&p.Out, "out", p.Out, "file to write the report to, none if empty")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: growth [flags]\n\nMeasures large tables, an attacker and Zipf traffic on a separate PostgreSQL,\nwhich is in TMPDIR and takes about 8 GB there for 10 million rows.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	if flags.NArg() > 0 {
		return plan{}, fmt.Errorf("%q: no arguments are taken", flags.Arg(0))
	}
	if p.Rounds < 1 || p.Cell <= 0 || p.Attack.Length <= 0 || p.Zipf.Length <= 0 {
		return plan{}, errors.New("-rounds, -cell, -attack and -zipf must be positive")
	}
	return p, nil
}

// rowCounts is a flag: numbers and commas.
type rowCounts []int64

func (r *rowCounts) String() string {
	var words []string
	for _, n := range *r {
		words = append(words, strconv.FormatInt(n, 10))
	}
	return strings.Join(words, ",")
}

// Set accepts at least two sizes in ascending order.
func (r *rowCounts) Set(text string) error {
	var sizes rowCounts
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil || n < 1 || n > 1e10 || len(sizes) > 0 && n <= sizes[len(sizes)-1] {
			return errors.New("must be numbers from 1 to 10000000000, fewest first, such as 10000,1000000")
		}
		sizes = append(sizes, n)
	}
	if len(sizes) < 2 {
		return errors.New("must be two sizes at least, to compare")
	}
	*r = sizes
	return nil
}
