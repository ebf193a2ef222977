package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
)

// TestOneDefaultAlgorithm: every command with an --algorithm has the same
// default, so that they mean the same row of a key. Only wait differs: other
// algorithms have no queue to wait in.
func TestOneDefaultAlgorithm(t *testing.T) {
	t.Parallel()
	root, _ := newRoot()
	with := 0
	for _, cmd := range root.Commands() {
		flag := cmd.Flags().Lookup("algorithm")
		if flag == nil {
			continue
		}
		with++
		want := "token_bucket"
		if cmd.Name() == "wait" {
			want = "leaky_bucket_queue"
		}
		if flag.DefValue != want || flag.Value.String() != want {
			t.Errorf("%s: --algorithm is %s by default, want %s", cmd.Name(), flag.DefValue, want)
		}
	}
	if with < 11 {
		t.Errorf("only %d commands have --algorithm", with)
	}
}

// TestImpliedAlgorithm: --calendar, --aligned and --tick choose the algorithm
// that has them, unless --algorithm is given.
func TestImpliedAlgorithm(t *testing.T) {
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
		var flags policyFlags
		cmd := &cobra.Command{}
		flags.register(cmd)
		if err := cmd.ParseFlags(append([]string{"--limit", "10"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		p, err := flags.read()
		if err != nil || p.Algorithm != want {
			t.Errorf("%s: %v, %v; want %s", args, p.Algorithm, err, want)
		}
	}
	for _, args := range []string{"--calendar month", "--aligned", "--tick 1s"} {
		var flags policyFlags
		cmd := &cobra.Command{}
		flags.register(cmd)
		if err := cmd.ParseFlags(append([]string{"--limit", "10", "--algorithm", "token_bucket"}, strings.Fields(args)...)); err != nil {
			t.Fatal(err)
		}
		if p, err := flags.read(); err == nil {
			t.Errorf("%s with --algorithm token_bucket: got %v, want an error", args, p)
		}
	}
}
