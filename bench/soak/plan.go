package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// plan is what one run does, and for how long.
type plan struct {
	Quick bool
	// Keys is the number of keys that arrive during Length.
	Keys       int
	Generation int // the number of keys that are in use together, a power of two
	Watched    int // keys of each policy whose admissions are all recorded
	Rate       int // requests per second that the callers try to send
	Length     time.Duration
	// Warm is the time before Length begins. At its end rows of all ages are in the tables.
	Warm  time.Duration
	Every time.Duration // the interval between readings
	Part  time.Duration // the length of the first and the last part, which are compared
	Speed int           // of the limiter's clock
	Sweep time.Duration // the janitor's interval
}

var full = plan{
	Keys: 1_000_000, Generation: 1 << 14, Watched: 4, Rate: 4000, Length: 10 * time.Minute, Warm: 2 * time.Minute,
	Every: 10 * time.Second, Part: time.Minute, Speed: 120, Sweep: 2 * time.Second,
}

var quick = plan{
	Quick: true,
	Keys:  12_000, Generation: 1 << 10, Watched: 1, Rate: 2000, Length: 16 * time.Second, Warm: 13 * time.Second,
	Every: 2 * time.Second, Part: 4 * time.Second, Speed: 1200, Sweep: 500 * time.Millisecond,
}

// callers is the number of concurrent callers, and of the limiter's connections.
const callers = 16

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
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&p.Quick, "quick", p.Quick, "end within a minute: fewer keys, a faster clock")
	flags.IntVar(&p.Keys, "keys", p.Keys, "keys that arrive")
	flags.IntVar(&p.Rate, "rate", p.Rate, "requests per second")
	flags.DurationVar(&p.Length, "length", p.Length, "length of the soak after the warm-up")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: soak [flags]\n\nRuns mixed traffic with the janitor on a separate PostgreSQL in TMPDIR, and fails if\nmemory, tables or the time of a decision grow.")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return plan{}, err
	}
	switch {
	case flags.NArg() > 0:
		return plan{}, fmt.Errorf("%q: no arguments are taken", flags.Arg(0))
	case p.Keys < 1 || p.Rate < 1:
		return plan{}, errors.New("-keys and -rate must be positive")
	case p.Length < 2*p.Part:
		return plan{}, fmt.Errorf("-length must be at least %v: its first and last %v are compared", 2*p.Part, p.Part)
	case p.arrivals(time.Second)*9 > p.Rate*4:
		return plan{}, fmt.Errorf("-keys %d in %v need more than four ninths of -rate %d", p.Keys, p.Length, p.Rate)
	}
	return p, nil
}

// arrivals is the number of keys that arrive within a duration.
func (p plan) arrivals(d time.Duration) int {
	return int(float64(p.Keys) * d.Seconds() / p.Length.Seconds())
}

// block is the length of the block that traffic puts on a key.
const block = 10 * time.Minute

// policies are those of the traffic: key number n has policy n modulo their number. The
// longest hold of a row is an hour. Half of them are Durable.
var policies = []limiter.Policy{
	{Name: "leaky", Algorithm: limiter.LeakyBucket, Limit: 20, Period: 10 * time.Minute, Durability: limiter.Relaxed},
	{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 30, Period: 20 * time.Minute},
	{Name: "token", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Hour, Durability: limiter.Relaxed},
	{Name: "gcra", Algorithm: limiter.GCRA, Limit: 10, Period: 10 * time.Minute},
	{Name: "fixed", Algorithm: limiter.FixedWindow, Limit: 50, Period: 30 * time.Minute},
	{Name: "counter", Algorithm: limiter.SlidingWindowCounter, Limit: 40, Period: 15 * time.Minute, Durability: limiter.Relaxed},
	{Name: "log", Algorithm: limiter.SlidingWindowLog, Limit: 20, Period: 20 * time.Minute, BlockFor: block, Durability: limiter.Relaxed},
	{Name: "hourly", Algorithm: limiter.FixedWindow, Limit: 40, Calendar: limiter.Hour},
}
