package soak

import (
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// plan is what one run does, and for how long.
type plan struct {
	quick      bool
	keys       int // that arrive during length
	generation int // the number of keys that are in use together, a power of two
	rate       int // requests per second that the callers try to send
	length     time.Duration
	// warm is the time before length begins. At its end rows of all ages are in the tables.
	warm  time.Duration
	every time.Duration // the interval between readings
	part  time.Duration // the length of the first and the last part, which are compared
	speed int           // of the limiter's clock
	sweep time.Duration // the janitor's interval
}

var full = plan{
	keys: 1_000_000, generation: 1 << 14, rate: 4000, length: 10 * time.Minute, warm: 2 * time.Minute,
	every: 10 * time.Second, part: time.Minute, speed: 120, sweep: 2 * time.Second,
}

var short = plan{
	quick: true,
	keys:  12_000, generation: 1 << 10, rate: 2000, length: 16 * time.Second, warm: 13 * time.Second,
	every: 2 * time.Second, part: 4 * time.Second, speed: 1200, sweep: 500 * time.Millisecond,
}

// callers is the number of concurrent callers, and of the limiter's connections.
const callers = 16

// arrivals is the number of keys that arrive within a duration.
func (p plan) arrivals(d time.Duration) int {
	return int(float64(p.keys) * d.Seconds() / p.length.Seconds())
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

// clock runs faster than the real one. It is the Config.Now of the limiter and of the
// janitor.
type clock struct {
	start time.Time
	speed int
}

// Now returns the clock's time.
func (c clock) Now() time.Time { return c.start.Add(time.Since(c.start) * time.Duration(c.speed)) }
