package replay

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

// titles maps the algorithms to their display names.
var titles = map[limiter.Algorithm]string{
	limiter.LeakyBucket: "Leaky bucket", limiter.LeakyBucketQueue: "Leaky bucket as a queue",
	limiter.TokenBucket: "Token bucket", limiter.GCRA: "GCRA", limiter.FixedWindow: "Fixed window",
	limiter.SlidingWindowCounter: "Sliding window counter", limiter.SlidingWindowLog: "Sliding window log",
}

// Words describes the candidate's limit, such as "5 per 1m, burst 10".
func (c CandidateReport) Words() string {
	p := c.Policy
	text := units(p.Limit) + " per "
	switch {
	case p.Calendar == "":
		text += duration.Format(p.Period)
	default:
		text += fmt.Sprintf("%s (%s)", p.Calendar, cmp.Or(p.TimeZone, "UTC"))
	}
	if p.Anchor != "" {
		text += " from " + p.Anchor
	}
	for _, more := range []struct {
		is   bool
		text string
	}{
		{p.Burst != 0, "burst " + units(p.Burst)}, {p.Tick != 0, "tick " + duration.Format(p.Tick)}, {p.Aligned, "aligned"},
		{p.BlockFor != 0, "block for " + duration.Format(p.BlockFor)}, {c.Cost != 1, "cost " + units(c.Cost)},
	} {
		if more.is {
			text += ", " + more.text
		}
	}
	return text
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
