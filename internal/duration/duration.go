// Package duration parses durations with days, for flags and for policies in JSON and
// YAML.
package duration

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Day is the length of the unit d. It is always 24 hours, also where a clock changes.
const Day = 24 * time.Hour

// Form describes the durations that Parse accepts, for the end of an error.
const Form = "a number and a unit, such as 90s, 15m, 24h or 30d"

var errForm = errors.New("use " + Form)

// Parse returns the duration of a text. It accepts what time.ParseDuration does, and the
// unit d of 24 hours, such as in 30d, 1d12h and 1.5d. The error does not quote the text.
func Parse(text string) (time.Duration, error) {
	if !strings.Contains(text, "d") {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errForm
		}
		return d, nil
	}
	rest, negative := strings.CutPrefix(text, "-")
	if !negative {
		rest = strings.TrimPrefix(rest, "+")
	}
	var sum time.Duration
	for rest != "" {
		number := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789."))]
		rest = rest[len(number):]
		unit := rest
		if end := strings.IndexAny(rest, "0123456789."); end >= 0 {
			unit = rest[:end]
		}
		rest = rest[len(unit):]
		part, err := parsePart(number, unit)
		if err != nil {
			return 0, err
		}
		if sum += part; sum < 0 {
			return 0, errLong
		}
	}
	if negative {
		sum = -sum
	}
	return sum, nil
}

var errLong = fmt.Errorf("too long: the longest duration is %d days", int64(math.MaxInt64/Day))

// parsePart returns the duration of one number and its unit, which is at least 0.
func parsePart(number, unit string) (time.Duration, error) {
	if unit != "d" {
		d, err := time.ParseDuration(number + unit)
		if err != nil || d < 0 || unit == "" { // ParseDuration accepts a 0 without a unit
			return 0, errForm
		}
		return d, nil
	}
	whole, fraction, _ := strings.Cut(number, ".")
	if whole+fraction == "" || strings.Contains(fraction, ".") {
		return 0, errForm
	}
	var days, part uint64
	if whole != "" {
		var err error
		if days, err = strconv.ParseUint(whole, 10, 64); err != nil || days > uint64(math.MaxInt64/Day) {
			return 0, errLong
		}
	}
	if fraction = fraction[:min(len(fraction), 18)]; fraction != "" { // more digits are less than a nanosecond
		part, _ = strconv.ParseUint(fraction, 10, 64)
		over := uint64(1)
		for range len(fraction) {
			over *= 10
		}
		high, low := bits.Mul64(part, uint64(Day))
		part, _ = bits.Div64(high, low, over)
	}
	if total := days*uint64(Day) + part; total <= math.MaxInt64 {
		return time.Duration(total), nil
	}
	return 0, errLong
}
