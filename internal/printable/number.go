package printable

import (
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
