// Package duration parses and formats durations with days, for flags and for policies in JSON and
// YAML.
package duration

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Day is the length of the unit d. It is always 24 hours, also where a clock changes.
const Day = 24 * time.Hour

// Form describes the durations that Parse accepts, for the end of an error.
const Form = "a number and a unit, such as 90s, 15m, 24h or 30d"

var errForm = errors.New("use " + Form)

// withDays matches a sign, a number of days, and the rest.
var withDays = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)d((?:[0-9.]+[a-zµμ]+)*)$`)
})

// Parse returns the duration of a text. It accepts what time.ParseDuration does, also after a
// number of days of 24 hours, as in 30d, 1d12h and 1.5d. The error does not quote the text.
func Parse(text string) (time.Duration, error) {
	m := withDays().FindStringSubmatch(text)
	if m == nil {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, errForm
		}
		return d, nil
	}
	sign, days, rest := m[1], m[2], cmp.Or(m[3], "0")
	more, err := time.ParseDuration(rest)
	if err != nil {
		return 0, errForm
	}
	part, err := time.ParseDuration(days + "h") // a 24th
	if err != nil || part > math.MaxInt64/24 || part*24 > math.MaxInt64-more {
		return 0, errLong
	}
	if sign == "-" {
		return -part*24 - more, nil
	}
	return part*24 + more, nil
}

// Format returns a duration as people write it: 1m and 30d, not 1m0s and 720h0m0s. Parse
// reads it.
func Format(d time.Duration) string {
	if d%Day == 0 && d.Abs() > Day {
		return fmt.Sprintf("%dd", d/Day)
	}
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

var errLong = fmt.Errorf("too long: the longest duration is %d days", int64(math.MaxInt64/Day))

// P99 returns the 99th percentile, by the nearest rank, and 0 of none. It sorts all in place.
func P99(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[(len(all)*99+99)/100-1]
}
