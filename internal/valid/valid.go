// Package valid has the bounds of names, keys, units and durations.
package valid

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Bounds of a policy's numbers, and of a key in bytes: an index row holds about 2,700.
const (
	MinUnits    = 1e-9 // of Limit and Burst
	MaxUnits    = algorithm.MaxUnits
	MaxDuration = time.Duration(algorithm.MaxLifetime) * time.Microsecond
	MaxKey      = 1024
)

// NameHelp is the form of a policy's name.
const NameHelp = `^[a-z0-9][a-z0-9_.-]{0,63}$`

// Name reports whether s has the form of a policy's name.
func Name(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return true
}

// Key returns an ErrInvalid if key is not the key of a request.
func Key(key string) error {
	if key == "" {
		return store.Invalid("key", `""`, "is empty; use a constant such as \"all\" for a limit that all callers share")
	}
	return Text("key", key, MaxKey)
}

// Text returns an ErrInvalid about field if s has more than most bytes or is not text that
// PostgreSQL stores.
func Text(field, s string, most int) error {
	switch {
	case len(s) > most:
		return store.Invalid(field, store.Quote(s), fmt.Sprintf("is longer than %d bytes; hash it first", most))
	case strings.IndexByte(s, 0) >= 0:
		return store.Invalid(field, store.Quote(s), "holds a NUL byte")
	case !utf8.ValidString(s):
		return store.Invalid(field, store.Quote(s), "is not valid UTF-8; encode it first")
	}
	return nil
}

// Units reports whether v is from MinUnits to MaxUnits. NaN is not.
func Units(v float64) bool { return v >= MinUnits && v <= MaxUnits && !math.IsInf(v, 0) }

// Duration returns why d is not valid, or nothing.
func Duration(d time.Duration) (reason string) {
	switch {
	case d < 0:
		return "must not be negative"
	case d > MaxDuration:
		return "must be at most a hundred years"
	case d%time.Microsecond != 0:
		return "must be whole microseconds"
	}
	return ""
}

// Times returns units*factor/per within the bounds of a policy's numbers. It removes the
// rounding of a whole product: 1.1 times 100 is 110.
func Times(units, factor, per float64) float64 {
	v := units * factor / per
	if whole := math.RoundToEven(v); math.Abs(v-whole) <= v*1e-12 {
		v = whole
	}
	return min(max(v, MinUnits), MaxUnits)
}
