package policyflags

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

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
