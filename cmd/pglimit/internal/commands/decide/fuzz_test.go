package decide

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/limiter"
)

// FuzzSplitLine: a line with a tab gives the key that was put into it, and no line gives a
// cost with white space around it.
func FuzzSplitLine(f *testing.F) {
	for _, key := range []string{"", "k", "a b", "a\tb", " ", "\xff", "a\v2", "192.0.2.7 2", "a  2", "a \v 2 "} {
		for _, cost := range []string{"", "2", " 2 ", "1e3", "x"} {
			f.Add(key, cost)
		}
	}
	f.Fuzz(func(t *testing.T, key, cost string) {
		if strings.ContainsAny(key+cost, "\n") || strings.Contains(cost, "\t") {
			return
		}
		if gotKey, gotCost := splitLine(key + "\t" + cost); gotKey != key || gotCost != strings.TrimSpace(cost) {
			t.Errorf("%q and %q are read as %q and %q", key, cost, gotKey, gotCost)
		}
		if gotKey, gotCost := splitLine(key); strings.TrimSpace(gotCost) != gotCost || !strings.Contains(key, gotKey) {
			t.Errorf("%q is read as %q and %q", key, gotKey, gotCost)
		}
	})
}

// FuzzLine: a line with a tab has the key and the cost that were put into it, a line
// without a cost has the flag's, and any other cost is ErrInvalid and named.
func FuzzLine(f *testing.F) {
	for _, key := range []string{"k", "a b", "a\tb", "192.0.2.7"} {
		for _, cost := range []string{"", "2", " 2 ", "1e3", "x", "NaN", "-Inf", "0x1p-2", "1_000", "1e999", "２"} {
			f.Add(key, cost)
		}
	}
	f.Fuzz(func(t *testing.T, key, cost string) {
		if strings.ContainsAny(key+cost, "\n") || strings.Contains(cost, "\t") {
			return
		}
		l := lines{cost: 7}
		got, units, err := l.parse(key + "\t" + cost)
		if got != key {
			t.Errorf("%q and %q: the key %q", key, cost, got)
		}
		cost = strings.TrimSpace(cost)
		want, wrong := strconv.ParseFloat(cost, 64)
		switch {
		case cost == "":
			if units != 7 || err != nil {
				t.Errorf("%q without a cost: %v, %v", key, units, err)
			}
		case wrong != nil:
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), strconv.Quote(cost)) {
				t.Errorf("%q and %q: %v", key, cost, err)
			}
		case err != nil || units != want && want == want:
			t.Errorf("%q and %q: %v, %v", key, cost, units, err)
		}
	})
}
