package main

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/limiter"
)

// keySecretEnv names the variable with limiter.Config.KeySecret: a secret does
// not belong on a command line.
const keySecretEnv = "PGLIMIT_KEY_SECRET"

// defaultAlgorithm is the algorithm of every command that is given neither
// --algorithm nor a flag that implies one. Commands about the same key then
// mean the same row.
const defaultAlgorithm = limiter.TokenBucket

// policyFlags are the flags that make a policy and a cost.
type policyFlags struct {
	// only is set before registering, by a command whose verb one algorithm
	// alone supports. It replaces defaultAlgorithm.
	only       limiter.Algorithm
	policy     limiter.Policy
	algorithm  string
	calendar   string
	flags      *pflag.FlagSet
	durability string // empty where there is no such flag: the default
	cost       float64
}

// register adds the flags for asks of a database.
func (f *policyFlags) register(cmd *cobra.Command) {
	f.registerNumbers(cmd)
	names := []string{limiter.Durable.String(), limiter.Relaxed.String()}
	cmd.Flags().StringVar(&f.durability, "durability", names[0], "durable, or relaxed: faster, but a crash of the server may forget the last moment's decisions")
	_ = cmd.RegisterFlagCompletionFunc("durability", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// registerNumbers adds the flags that decide: who is counted, and by which numbers.
func (f *policyFlags) registerNumbers(cmd *cobra.Command) {
	f.registerPolicy(cmd)
	cmd.Flags().Float64Var(&f.cost, "cost", 1, "`units` that one ask takes")
}

// registerPolicy adds the flags that are a policy's.
func (f *policyFlags) registerPolicy(cmd *cobra.Command) {
	f.registerRow(cmd)
	flags := cmd.Flags()
	flags.Float64Var(&f.policy.Limit, "limit", 0, "`units` that pass per period (needed)")
	flags.DurationVar(&f.policy.Period, "period", time.Minute, "what the limit is per, such as 1s or 24h")
	flags.Float64Var(&f.policy.Burst, "burst", 0, "`units` that pass at once; 0 is the limit")
	flags.DurationVar(&f.policy.Tick, "tick", 0, "leak in whole steps, one every tick"+f.implies(limiter.LeakyBucket))
	flags.BoolVar(&f.policy.Aligned, "aligned", false, "windows on the clock instead of from the first hit"+f.implies(limiter.FixedWindow))
	var calendars []string
	for _, c := range limiter.Calendars() {
		calendars = append(calendars, string(c))
	}
	flags.StringVar(&f.calendar, "calendar", "", "windows of the calendar, instead of --period: "+strings.Join(calendars, ", ")+f.implies(limiter.FixedWindow))
	flags.StringVar(&f.policy.TimeZone, "time-zone", "", "the calendar's `zone`, such as Europe/Vienna; empty is UTC")
	_ = cmd.RegisterFlagCompletionFunc("calendar", cobra.FixedCompletions(calendars, cobra.ShellCompDirectiveNoFileComp))
	flags.DurationVar(&f.policy.BlockFor, "block-for", 0, "deny a key for that long once it was denied")
	_ = cmd.MarkFlagRequired("limit")
}

// implies is the end of the help of a flag that chooses algorithm a.
func (f *policyFlags) implies(a limiter.Algorithm) string {
	if f.only != "" {
		return fmt.Sprintf(" (%s)", a)
	}
	return fmt.Sprintf("; implies --algorithm %s", a)
}

// registerRow adds the flags that say where a key is kept: all that verbs
// without an ask need.
func (f *policyFlags) registerRow(cmd *cobra.Command) {
	var names []string
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	flags := cmd.Flags()
	f.flags = flags
	flags.StringVar(&f.policy.Name, "name", "cli", "the policy's `name`: the same key counts apart under another")
	flags.StringVar(&f.algorithm, "algorithm", string(cmp.Or(f.only, defaultAlgorithm)), strings.Join(names, ", "))
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// read returns the policy, or what is wrong with it, before any database is
// asked.
func (f *policyFlags) read() (limiter.Policy, error) {
	f.policy.Algorithm, f.policy.Calendar = f.chosen(), limiter.Calendar(f.calendar)
	if f.calendar != "" && !f.flags.Changed("period") {
		f.policy.Period = 0 // which its default is not
	}
	switch f.durability {
	case "", limiter.Durable.String():
	case limiter.Relaxed.String():
		f.policy.Durability = limiter.Relaxed
	default:
		return f.policy, fmt.Errorf("--durability is %q: take durable or relaxed", f.durability)
	}
	return f.policy, f.policy.Validate()
}

// chosen returns the algorithm: that of --algorithm if it is given, else the one
// that another flag implies, else the default.
func (f *policyFlags) chosen() limiter.Algorithm {
	switch {
	case f.only != "" || f.flags.Changed("algorithm"):
	case f.calendar != "" || f.policy.Aligned:
		return limiter.FixedWindow
	case f.policy.Tick != 0:
		return limiter.LeakyBucket
	}
	return limiter.Algorithm(f.algorithm)
}

// readRow returns the policy of a verb that has no ask. Where a key is kept does
// not depend on the numbers, so any valid ones do.
func (f *policyFlags) readRow() (limiter.Policy, error) {
	f.policy.Limit, f.policy.Period = 1, time.Minute
	return f.read()
}

// newLimiter makes a limiter over pool as the environment says. All that it
// answers is the database's own answer.
func newLimiter(pool *pgxpool.Pool) (*limiter.Limiter, error) {
	return limiterWith(pool, &limiter.Config{DenyCacheTTL: -1})
}

// limiterWith is newLimiter with more said about it.
func limiterWith(pool *pgxpool.Pool, config *limiter.Config) (*limiter.Limiter, error) {
	config.KeySecret = []byte(os.Getenv(keySecretEnv))
	return limiter.New(pool, config)
}

// per is what a policy's limit is for.
func per(p limiter.Policy) string {
	switch {
	case p.Calendar == "":
		return p.Period.String()
	case p.TimeZone == "":
		return string(p.Calendar) + " (UTC)"
	}
	return fmt.Sprintf("%s (%s)", p.Calendar, p.TimeZone)
}

// sentence tells a decision to a person.
func sentence(r limiter.Result) string {
	switch {
	case !r.Allowed && r.RetryAfter == limiter.Never:
		return "denied: the cost is above the burst of " + units(r.Burst)
	case !r.Allowed:
		return fmt.Sprintf("denied (%s): retry after %v", r.Reason, r.RetryAfter)
	case r.Delay > 0:
		return fmt.Sprintf("allowed: in %v, %s of %s remaining", r.Delay, units(r.Remaining), units(r.Burst))
	}
	return fmt.Sprintf("allowed: %s of %s remaining, reset after %v", units(r.Remaining), units(r.Burst), r.ResetAfter)
}

// units shows up to six digits behind the point.
func units(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(v, 'f', 6, 64), "0"), ".")
}
