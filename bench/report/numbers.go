package report

import (
	"math"
	"strconv"
)

// round3 rounds to three significant digits, because a benchmark is no more precise.
func round3(v float64) float64 {
	if v == 0 {
		return 0
	}
	step := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	return math.Round(v/step) * step
}

// Count is a number of things, such as "123,000".
func Count(v float64) string {
	s := strconv.FormatFloat(round3(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// short is Count for narrow places, such as "123k".
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
		return Count(v)
	}
	return trim(v)
}

// span is a time in nanoseconds, such as "84.2µs".
func span(ns float64) string {
	ns = round3(ns)
	switch {
	case ns == 0:
		return "0s"
	case ns >= 1e9:
		return trim(ns/1e9) + "s"
	case ns >= 1e6:
		return trim(ns/1e6) + "ms"
	case ns >= 1e3:
		return trim(ns/1e3) + "µs"
	}
	return trim(ns) + "ns"
}

// trim writes three significant digits without trailing zeros.
func trim(v float64) string { return strconv.FormatFloat(round3(v), 'g', 4, 64) }
