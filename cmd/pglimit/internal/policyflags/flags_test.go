package policyflags

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
)

// TestFlagsImplyAlgorithm: --calendar, --aligned and --tick select the algorithm
// that supports them, unless --algorithm is given.
func TestFlagsImplyAlgorithm(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]limiter.Algorithm{
		"":                               limiter.TokenBucket,
		"--burst 20":                     limiter.TokenBucket,
		"--calendar month":               limiter.FixedWindow,
		"--aligned":                      limiter.FixedWindow,
		"--aligned=false":                limiter.TokenBucket,
		"--tick 1s":                      limiter.LeakyBucket,
		"--algorithm gcra":               limiter.GCRA,
		"--algorithm token_bucket":       limiter.TokenBucket,
		"--algorithm leaky_bucket":       limiter.LeakyBucket,
		"--algorithm fixed_window":       limiter.FixedWindow,
		"--tick 0s --calendar=":          limiter.TokenBucket,
		"--algorithm gcra --tick=0s":     limiter.GCRA,
		"--calendar day --time-zone UTC": limiter.FixedWindow,
	} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		if err := cmd.ParseFlags(append([]string{"--limit", "10"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		p, err := flags.Policy()
		if err != nil || p.Algorithm != want {
			t.Errorf("%s: %v, %v; want %s", args, p.Algorithm, err, want)
		}
	}
	for _, args := range []string{"--calendar month", "--aligned", "--tick 1s"} {
		var flags Flags
		cmd := &cobra.Command{}
		flags.RegisterRequest(cmd)
		if err := cmd.ParseFlags(append([]string{"--limit", "10", "--algorithm", "token_bucket"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		if p, err := flags.Policy(); err == nil {
			t.Errorf("%s with --algorithm token_bucket: got %v, want an error", args, p)
		}
	}
}
