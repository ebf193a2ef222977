package printable

import (
	"fmt"
	"math"
	"strconv"
)

// Number returns v in decimals as people write them, exactly: 1000000, never 1e+06, which
// YAML readers take for a text. Only what no policy has is written with an exponent: less than
// 1e-9, or 1e21 and more.
func Number(v float64) string {
	if a := math.Abs(v); v != 0 && a < 1e-9 || a >= 1e21 {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Count returns a number of things, such as 1 key or 2 keys.
func Count[T int | int64](n T, thing string) string {
	switch y := len(thing) - 1; {
	case n == 1:
	case thing[y:] == "y" && thing != "key":
		thing = thing[:y] + "ies"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
