package replay

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// titles are the algorithms' names for people.
var titles = map[limiter.Algorithm]string{
	limiter.LeakyBucket: "Leaky bucket", limiter.LeakyBucketQueue: "Leaky bucket as a queue",
	limiter.TokenBucket: "Token bucket", limiter.GCRA: "GCRA", limiter.FixedWindow: "Fixed window",
	limiter.SlidingWindowCounter: "Sliding window counter", limiter.SlidingWindowLog: "Sliding window log",
}

// words tells a candidate's policy in sentences.
func words(c CandidateReport) string {
	p := c.Policy
	limit, burst := units(p.Limit), units(p.Limit)
	if p.Burst != 0 {
		burst = units(p.Burst)
	}
	var s string
	switch p.Algorithm {
	case limiter.LeakyBucketQueue:
		s = fmt.Sprintf("Lets %s through per %s, evenly spaced; up to %s wait for their turn.", limit, span(p.Period), burst)
	case limiter.FixedWindow:
		s = fmt.Sprintf("Up to %s in each %s", limit, window(p))
	case limiter.SlidingWindowCounter:
		s = fmt.Sprintf("Up to %s in any %s, by an estimate from windows on the clock.", limit, span(p.Period))
	case limiter.SlidingWindowLog:
		s = fmt.Sprintf("Never more than %s in any %s.", limit, span(p.Period))
	default:
		s = fmt.Sprintf("%s per %s in the long run, up to %s at once", limit, span(p.Period), burst)
		if p.Tick != 0 {
			s += fmt.Sprintf(", freed in steps of %s", long(p.Tick.Microseconds()))
		}
		s += "."
	}
	if c.Cost != 1 {
		s += fmt.Sprintf(" Each request costs %s.", units(c.Cost))
	}
	if p.BlockFor != 0 {
		s += fmt.Sprintf(" Who is denied stays so for %s.", long(p.BlockFor.Microseconds()))
	}
	return s
}

// window tells which windows a fixed window has.
func window(p limiter.Policy) string {
	switch {
	case p.Calendar != "" && p.TimeZone != "":
		return fmt.Sprintf("%s of the calendar in %s.", p.Calendar, p.TimeZone)
	case p.Calendar != "":
		return fmt.Sprintf("%s of the calendar in UTC.", p.Calendar)
	case p.Aligned:
		return span(p.Period) + " on the clock."
	}
	return span(p.Period) + ", counted from a client's first request."
}

// span is a period after "per" or "each": "minute" and not "1 minute".
func span(d time.Duration) string {
	s := long(d.Microseconds())
	if one, ok := strings.CutPrefix(s, "1 "); ok && !strings.Contains(one, " ") {
		return one
	}
	return s
}

// long is a time in microseconds in words, such as 1 minute 30 seconds; below a
// second it is as Go writes it.
func long(us int64) string {
	if us < second {
		return (time.Duration(us) * time.Microsecond).String()
	}
	var all []string
	for _, unit := range []struct {
		name string
		is   int64
	}{{"day", day}, {"hour", hour}, {"minute", minute}} {
		if n := us / unit.is; n > 0 {
			all = append(all, plural(n, unit.name))
			us %= unit.is
		}
	}
	switch {
	case us == 0:
	case us%second == 0:
		all = append(all, plural(us/second, "second"))
	default:
		all = append(all, units(float64(us)/1e6)+" seconds")
	}
	return strings.Join(all, " ")
}

// about is long without what is less than a minute of hours or an hour of days.
func about(us int64) string {
	switch {
	case us > day:
		us -= us % hour
	case us > hour:
		us -= us % minute
	}
	return long(us)
}

func plural(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return grouped(n) + " " + what + "s"
}

// grouped is a number with its digits in threes.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// units shows a number of units as exactly as it was given.
func units(v float64) string {
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(v, 'f', -1, 64), ".")
	if n, err := strconv.ParseInt(whole, 10, 64); err == nil {
		whole = grouped(n)
	}
	if fraction != "" {
		whole += "." + fraction
	}
	return whole
}
