package decide

import (
	"strings"
	"testing"
)

// FuzzSplitLine: a line with a tab gives the key that was put into it, and no line gives a
// cost with white space around it.
func FuzzSplitLine(f *testing.F) {
	for _, key := range []string{"", "k", "a b", "a\tb", " ", "\xff", "a\v2", "192.0.2.7 2"} {
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
