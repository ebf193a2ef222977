// Package policyflags has the flags for a policy and a cost. Their defaults are
// the same for every subcommand.
package policyflags

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/limiter"
)

// defaultAlgorithm applies if neither --algorithm nor another flag selects one. All
// commands share it, so that they find the same row of a key.
const defaultAlgorithm = limiter.TokenBucket

// Flags has the flags of one command. A command calls one Register method; each
// adds the flags of the method before it and more.
type Flags struct {
	// Only is the algorithm of a command that supports no other. Set it before
	// registering: it replaces the default.
	Only limiter.Algorithm
	// Cost is the number of units, set by --cost. Default: 1.
	Cost float64

	policy     limiter.Policy
	algorithm  string
	calendar   string
	durability string // empty in a command without the flag
	flags      *pflag.FlagSet
}

// RegisterRow adds the flags that locate a key's row, for commands that send no
// request.
func (f *Flags) RegisterRow(cmd *cobra.Command) {
	var names []string
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	flags := cmd.Flags()
	f.flags = flags
	flags.StringVar(&f.policy.Name, "name", "cli", "the policy's `name`; a key is counted separately under each name")
	flags.StringVar(&f.algorithm, "algorithm", string(cmp.Or(f.Only, defaultAlgorithm)), strings.Join(names, ", "))
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// RegisterPolicy adds all flags of a policy but --durability.
func (f *Flags) RegisterPolicy(cmd *cobra.Command) {
	f.RegisterRow(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&f.policy.Limit, "limit", 0, "`units` allowed per period (required)")
	flags.DurationVar(&f.policy.Period, "period", time.Minute, "period of the limit, such as 1s or 24h")
	flags.Float64Var(&f.policy.Burst, "burst", 0, "`units` allowed at once; 0: same as --limit")
	flags.DurationVar(&f.policy.Tick, "tick", 0, "leak in whole steps, one every tick"+f.implies(limiter.LeakyBucket))
	flags.BoolVar(&f.policy.Aligned, "aligned", false, "align windows to the clock, not to the first request"+f.implies(limiter.FixedWindow))
	var calendars []string
	for _, c := range limiter.Calendars() {
		calendars = append(calendars, string(c))
	}
	flags.StringVar(&f.calendar, "calendar", "", "use windows of the calendar instead of --period: "+strings.Join(calendars, ", ")+f.implies(limiter.FixedWindow))
	flags.StringVar(&f.policy.TimeZone, "time-zone", "", "`zone` of the calendar, such as Europe/Vienna; default: UTC")
	_ = cmd.RegisterFlagCompletionFunc("calendar", cobra.FixedCompletions(calendars, cobra.ShellCompDirectiveNoFileComp))
	flags.DurationVar(&f.policy.BlockFor, "block-for", 0, "block a key for this long after a denial")
	_ = cmd.MarkFlagRequired("limit")
}

// RegisterDecision adds the flags of RegisterPolicy and --cost.
func (f *Flags) RegisterDecision(cmd *cobra.Command) {
	f.RegisterPolicy(cmd)
	cmd.Flags().Float64Var(&f.Cost, "cost", 1, "`units` per request")
}

// RegisterRequest adds the flags of RegisterDecision and --durability, for requests
// to a database.
func (f *Flags) RegisterRequest(cmd *cobra.Command) {
	f.RegisterDecision(cmd)
	names := []string{limiter.Durable.String(), limiter.Relaxed.String()}
	cmd.Flags().StringVar(&f.durability, "durability", names[0], "durable, or relaxed: faster, but a crash of the server may forget the last moment's decisions")
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// implies returns the end of the help of a flag that implies algorithm a.
func (f *Flags) implies(a limiter.Algorithm) string {
	if f.Only != "" {
		return fmt.Sprintf(" (%s)", a)
	}
	return fmt.Sprintf("; implies --algorithm %s", a)
}

// Policy returns the policy of the flags, or an error if it is not valid. It needs
// no database.
func (f *Flags) Policy() (limiter.Policy, error) {
	f.policy.Algorithm, f.policy.Calendar = f.chosen(), limiter.Calendar(f.calendar)
	if f.calendar != "" && !f.flags.Changed("period") {
		f.policy.Period = 0 // a calendar replaces the flag's default
	}
	switch f.durability {
	case "", limiter.Durable.String():
	case limiter.Relaxed.String():
		f.policy.Durability = limiter.Relaxed
	default:
		return f.policy, fmt.Errorf("--durability is %q: use durable or relaxed", f.durability)
	}
	return f.policy, f.policy.Validate()
}

// RowPolicy returns the policy of a command that sends no request. Its limit and
// period are arbitrary: they do not matter for locating a row.
func (f *Flags) RowPolicy() (limiter.Policy, error) {
	f.policy.Limit, f.policy.Period = 1, time.Minute
	return f.Policy()
}

// chosen returns the algorithm of --algorithm or, without it, the algorithm that
// another flag implies or the default.
func (f *Flags) chosen() limiter.Algorithm {
	switch {
	case f.Only != "" || f.flags.Changed("algorithm"):
	case f.calendar != "" || f.policy.Aligned:
		return limiter.FixedWindow
	case f.policy.Tick != 0:
		return limiter.LeakyBucket
	}
	return limiter.Algorithm(f.algorithm)
}
