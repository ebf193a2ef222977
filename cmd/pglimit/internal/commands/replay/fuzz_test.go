package replay

import (
	"strings"
	"testing"
)

// FuzzCandidate: a candidate that is accepted is valid, and has no field twice.
func FuzzCandidate(f *testing.F) {
	for _, text := range []string{
		"limit=60", "limit=60,period=1m,burst=10", "limit=1,algorithm=fixed_window,calendar=day,time_zone=Europe/Vienna", "limit=1, block_for=1s",
		"", ",", "=", "limit", "limit=", "limit=x", "limit=1,limit=2", "limit=1,block_for=1s,block-for=2s", "limit=NaN", "limit=Inf", "limit=1,period=-1s", "help=true", "limit=1,cost=0",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCandidate(text)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for pair := range strings.SplitSeq(text, ",") {
			name, _, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(pair), "_", "-"), "=")
			if seen[name] {
				t.Errorf("%q is accepted as %+v", text, c)
			}
			seen[name] = true
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%q is accepted as %+v: %v", text, c, err)
		}
		if err := c.Policy.Validate(); err != nil {
			t.Errorf("%q is accepted with a policy that is not valid: %v", text, err)
		}
	})
}
