// Package policyflags has the flags for a policy and a cost. Their defaults are
// the same for every subcommand.
package policyflags

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
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
	from       string // of --policy
	flags      *pflag.FlagSet
}

// RegisterRow adds the flags that locate a key's row, for commands that send no
// request.
func (f *Flags) RegisterRow(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.policy.Name, "name", "cli", "the policy's `name`; a key is counted separately under each name")
	f.registerAlgorithm(cmd)
}

func (f *Flags) registerAlgorithm(cmd *cobra.Command) {
	var names []string
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	f.flags = cmd.Flags()
	f.flags.StringVar(&f.algorithm, "algorithm", string(cmp.Or(f.Only, defaultAlgorithm)), strings.Join(names, ", "))
	_ = cmd.RegisterFlagCompletionFunc("algorithm", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// RegisterPolicy adds all flags of a policy but --durability, and --policy, which replaces
// them.
func (f *Flags) RegisterPolicy(cmd *cobra.Command) {
	f.RegisterRow(cmd)
	f.registerNumbers(cmd)
	cmd.Flags().StringVar(&f.from, "policy", "", "use the policy of this `name` in the database, or FILE#NAME, instead of --limit and the other flags of a policy")
}

// registerNumbers adds the flags of a policy but its name, algorithm and durability.
func (f *Flags) registerNumbers(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Float64Var(&f.policy.Limit, "limit", 0, "`units` allowed per period (required, unless --policy is given)")
	cli.DurationVar(flags, &f.policy.Period, "period", time.Minute, "period of the limit, such as 1s, 24h or 30d")
	flags.Float64Var(&f.policy.Burst, "burst", 0, "`units` allowed at once; 0: same as --limit")
	cli.DurationVar(flags, &f.policy.Tick, "tick", 0, "leak in whole steps, one every tick"+f.implies(limiter.LeakyBucket))
	flags.BoolVar(&f.policy.Aligned, "aligned", false, "align windows to the clock, not to the first request"+f.implies(limiter.FixedWindow))
	var calendars []string
	for _, c := range limiter.Calendars() {
		calendars = append(calendars, string(c))
	}
	flags.StringVar(&f.calendar, "calendar", "", "use windows of the calendar instead of --period: "+strings.Join(calendars, ", ")+f.implies(limiter.FixedWindow))
	flags.StringVar(&f.policy.TimeZone, "time-zone", "", "`zone` of the calendar, such as Europe/Vienna; default: UTC")
	_ = cmd.RegisterFlagCompletionFunc("calendar", cobra.FixedCompletions(calendars, cobra.ShellCompDirectiveNoFileComp))
	cli.DurationVar(flags, &f.policy.BlockFor, "block-for", 0, "block a key for this long after a denial")
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
	f.registerDurability(cmd, names)
}

func (f *Flags) registerDurability(cmd *cobra.Command, names []string) {
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

// Named returns the name of the policy in the database that --policy selects, or "" if
// Policy does not need the database.
func (f *Flags) Named() string {
	if strings.Contains(f.from, "#") {
		return ""
	}
	return f.from
}

// Policy returns the policy of the flags or of --policy FILE#NAME, or an error if it is
// not valid. It needs no database, and is an error if Named is not empty.
func (f *Flags) Policy() (limiter.Policy, error) {
	if f.from != "" {
		return f.fromFile()
	}
	if limit := f.flags.Lookup("limit"); limit != nil && !limit.Changed {
		return f.policy, errors.New("--limit is missing: set the units allowed per period, or --policy")
	}
	return f.fromFlags()
}

// fromFile reads FILE#NAME.
func (f *Flags) fromFile() (limiter.Policy, error) {
	if err := f.alone(); err != nil {
		return limiter.Policy{}, err
	}
	at := strings.LastIndexByte(f.from, '#')
	if at < 0 {
		return limiter.Policy{}, fmt.Errorf("--policy is %q: this command reads no policy from the database: use FILE#NAME", f.from)
	}
	path, name := f.from[:at], f.from[at+1:]
	file, err := policyfile.ReadPath(path, strings.NewReader(""))
	if err != nil {
		return limiter.Policy{}, fmt.Errorf("--policy: %w", err)
	}
	var names []string
	for _, p := range file.Policies {
		if p.Name == name {
			return p.Policy, nil
		}
		names = append(names, p.Name)
	}
	return limiter.Policy{}, fmt.Errorf("--policy: %s has no policy %q: it has %s", path, name, cmp.Or(strings.Join(names, ", "), "none"))
}

// alone returns an error if --policy is given with a flag that it replaces.
func (f *Flags) alone() error {
	var with []string
	f.flags.Visit(func(flag *pflag.Flag) {
		if slices.Contains(ofPolicy, flag.Name) {
			with = append(with, "--"+flag.Name)
		}
	})
	if len(with) > 0 {
		return fmt.Errorf("--policy and %s are both given: a policy has all of its fields; use one or the other", strings.Join(with, ", "))
	}
	return nil
}

// ofPolicy are the flags of a policy's fields.
var ofPolicy = []string{"name", "algorithm", "limit", "period", "burst", "tick", "aligned", "calendar", "time-zone", "block-for", "durability"}

// Find returns the policy of that name in the database, or an error with the next step.
func (f *Flags) Find(policies *limiter.Policies) (limiter.Policy, error) {
	if err := f.alone(); err != nil {
		return limiter.Policy{}, err
	}
	p, err := policies.Get(f.from)
	if errors.Is(err, limiter.ErrNoPolicy) {
		return p, fmt.Errorf("--policy is %q: the database has no such policy: `pglimit policy list` lists them, `pglimit policy set` adds one", f.from)
	}
	return p, err
}

// fromFlags returns the policy of the flags.
func (f *Flags) fromFlags() (limiter.Policy, error) {
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

// Stored has the flags of a policy in the database. A flag that is not given leaves the
// field as it is.
type Stored struct {
	Flags

	onError string
	shadow  bool
	askers  bool
	maxTTL  time.Duration
	note    string
}

// Register adds the flags.
func (s *Stored) Register(cmd *cobra.Command) {
	s.registerAlgorithm(cmd)
	s.registerNumbers(cmd)
	cmd.Flags().Lookup("limit").Usage = "`units` allowed per period (required for a new policy)"
	s.registerDurability(cmd, []string{limiter.Durable.String(), limiter.Relaxed.String()})
	modes := []string{limiter.FailClosed.String(), limiter.FailOpen.String()}
	flags := cmd.Flags()
	flags.StringVar(&s.onError, "on-error", modes[0], "fail_closed, or fail_open: allow requests while the database is away")
	_ = cmd.RegisterFlagCompletionFunc("on-error", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&s.shadow, "shadow", false, "decide and report, but never deny; --shadow=false: deny again")
	flags.BoolVar(&s.askers, "askers", false, "let roles that may only request use it, by SQL; --askers=false: no longer")
	cli.DurationVar(flags, &s.maxTTL, "max-ttl", 24*time.Hour, "longest reservation of such a role")
	flags.StringVar(&s.note, "note", "", "why it is so, for the history: a `text` of up to 1,000 characters")
}

// Patch returns the policy of that name after the flags: a new one if before is nil. It
// validates the result. A change without --note has no note.
func (s *Stored) Patch(name string, before *limiter.StoredPolicy) (limiter.StoredPolicy, error) {
	s.policy.Name = name
	given := func(flag string) bool { return s.flags.Changed(flag) }
	if before == nil && !given("limit") {
		return limiter.StoredPolicy{}, fmt.Errorf("there is no policy %q yet: set --limit, and --period or --calendar", name)
	}
	from, err := s.fromFlags()
	if before == nil && err != nil {
		return limiter.StoredPolicy{}, err
	}
	after := limiter.StoredPolicy{Policy: from}
	if before != nil {
		after = *before
		s.overwrite(&after.Policy, from)
	}
	switch {
	case !given("on-error") && before != nil:
	case s.onError == limiter.FailClosed.String():
		after.OnError = limiter.FailClosed
	case s.onError == limiter.FailOpen.String():
		after.OnError = limiter.FailOpen
	default:
		return after, fmt.Errorf("--on-error is %q: use fail_closed or fail_open", s.onError)
	}
	if given("shadow") {
		after.Shadow = s.shadow
	}
	if given("askers") {
		after.Askers = s.askers
	}
	if given("max-ttl") {
		after.MaxTTL = s.maxTTL
	}
	after.Note = s.note
	return after, after.Policy.Validate()
}

// overwrite sets the fields of p whose flags were given to those of from.
func (s *Stored) overwrite(p *limiter.Policy, from limiter.Policy) {
	windows := p.Burst == p.Limit && (p.Algorithm == limiter.FixedWindow || p.Algorithm == limiter.SlidingWindowCounter || p.Algorithm == limiter.SlidingWindowLog)
	if windows { // their burst is their limit
		p.Burst = 0
	}
	for flag, set := range map[string]func(){
		"algorithm":  func() { p.Algorithm = from.Algorithm },
		"limit":      func() { p.Limit = from.Limit },
		"burst":      func() { p.Burst = from.Burst },
		"tick":       func() { p.Tick = from.Tick },
		"aligned":    func() { p.Aligned = from.Aligned },
		"time-zone":  func() { p.TimeZone = from.TimeZone },
		"block-for":  func() { p.BlockFor = from.BlockFor },
		"durability": func() { p.Durability = from.Durability },
	} {
		if s.flags.Changed(flag) {
			set()
		}
	}
	switch { // one replaces the other
	case s.flags.Changed("calendar"):
		p.Calendar, p.Period = from.Calendar, 0
		if p.Calendar == "" || s.flags.Changed("period") {
			p.Period = from.Period
		}
		if p.Calendar == "" {
			p.TimeZone = from.TimeZone
		}
	case s.flags.Changed("period"):
		p.Calendar, p.TimeZone, p.Period = "", from.TimeZone, from.Period
	}
}
