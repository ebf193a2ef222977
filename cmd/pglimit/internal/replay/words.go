package replay

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// titles maps the algorithms to their display names.
var titles = map[limiter.Algorithm]string{
	limiter.LeakyBucket: "Leaky bucket", limiter.LeakyBucketQueue: "Leaky bucket as a queue",
	limiter.TokenBucket: "Token bucket", limiter.GCRA: "GCRA", limiter.FixedWindow: "Fixed window",
	limiter.SlidingWindowCounter: "Sliding window counter", limiter.SlidingWindowLog: "Sliding window log",
}

// policyText describes a policy in sentences; each request costs cost units.
func policyText(p limiter.Policy, cost float64) string {
	limit, burst := units(p.Limit), units(p.Limit)
	if p.Burst != 0 {
		burst = units(p.Burst)
	}
	var s string
	switch p.Algorithm {
	case limiter.LeakyBucketQueue:
		s = fmt.Sprintf("Allows %s per %s, evenly spaced; up to %s wait for their turn.", limit, span(p.Period), burst)
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
	if cost != 1 {
		s += fmt.Sprintf(" Each request costs %s.", units(cost))
	}
	if p.BlockFor != 0 {
		s += fmt.Sprintf(" A denied client is blocked for %s.", long(p.BlockFor.Microseconds()))
	}
	return s
}

// window describes the windows of a fixed window.
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

// span returns a period in the form after "per" or "each": "minute", not "1 minute".
func span(d time.Duration) string {
	s := long(d.Microseconds())
	if one, ok := strings.CutPrefix(s, "1 "); ok && !strings.Contains(one, " ") {
		return one
	}
	return s
}

// long returns a length in microseconds in words, such as 1 minute 30 seconds. Below a
// second it has Go's format.
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

// about is like long, but without seconds above an hour and without minutes above a day.
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

// grouped returns a number with its digits in groups of three.
func grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// units returns a number of units, exactly.
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

// percent returns a share with one decimal place. It is 0 or 100 only if the share is
// exactly that.
func percent(n, of int) string {
	v := 100 * float64(n) / float64(of)
	switch {
	case n > 0 && v < 0.1:
		return "< 0.1 %"
	case n < of && v > 99.9:
		return "> 99.9 %"
	}
	return fmt.Sprintf("%.1f %%", v)
}
