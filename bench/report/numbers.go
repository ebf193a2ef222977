package report

import (
	"math"
	"strconv"
	"time"
)

// round3 rounds to three significant digits, because a benchmark is no more precise.
func round3(v float64) float64 {
	if v == 0 {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	return math.Round(v/step) * step
}

// count is a number of things, such as "123,000".
func count(v float64) string {
	s := strconv.FormatFloat(round3(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short is count for narrow places, such as "123k".
func short(v float64) string {
	v = round3(v)
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 2, 64) + "M"
	case v >= 1e3 && v < 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 2, 64) + "k"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'f', 0, 64) + "k"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// ratio is such as "0.832" or "57.3".
func ratio(v float64) string {
	if v >= 1000 {
		return count(v)
	}
	return trim(v)
}

// span is a time, such as "84.2 µs".
func span(d time.Duration) string {
	if d == 0 {
		return "0 s"
	}
	d = time.Duration(round3(float64(d)))
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{time.Second, "s"}, {time.Millisecond, "ms"}, {time.Microsecond, "µs"}} {
		if d >= u.unit {
			return trim(float64(d)/float64(u.unit)) + " " + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + " ns"
}

// trim writes three significant digits without trailing zeros.
func trim(v float64) string { return strconv.FormatFloat(round3(v), 'g', 4, 64) }
