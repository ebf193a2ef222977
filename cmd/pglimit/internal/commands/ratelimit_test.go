package commands

import (
	"slices"
	"testing"
)

// TestNameSelectsRatelimit checks that the program's name selects the subcommand.
func TestNameSelectsRatelimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want []string }{
		{[]string{"/bin/ratelimit"}, []string{"ratelimit"}},
		{[]string{"ratelimit.exe", "--verbose"}, []string{"ratelimit", "--verbose"}},
		{[]string{"pglimit", "top"}, []string{"top"}},
		{[]string{"/ratelimit/pglimit"}, nil},
	} {
		if got := arguments(c.args); !slices.Equal(got, c.want) {
			t.Errorf("%q runs %q, want %q", c.args, got, c.want)
		}
	}
}
