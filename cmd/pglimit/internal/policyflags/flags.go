// Package policyflags has the flags for a policy and a cost. Their defaults are
// the same for every subcommand.
package policyflags

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyfile"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// defaultAlgorithm applies if neither --algorithm nor another flag selects one. All
// commands share it, so that they find the same row of a key.
const defaultAlgorithm = limiter.TokenBucket

// defaultName is the name of a policy of flags without --policy.
const defaultName = "cli"

// Flags has the flags of one command. A command calls one Register method; each
// adds the flags of the method before it and more.
type Flags struct {
	// Only is the algorithm of a command that supports no other. Set it before
	// registering: it replaces the default.
	Only limiter.Algorithm
	// Cost is the number of units, set by --cost. Default: 1.
	Cost float64
	// Floor is the share that stays free, set by --floor. Default: 0.
	Floor float64
	// Note is that of a ledger, set by --note. Default: "".
	Note string

	policy policies.Stored
	from   Selection
	flags  *pflag.FlagSet
}

func (f *Flags) registerAlgorithm(cmd *cobra.Command) {
	var names []string
	for _, a := range limiter.Algorithms() {
		names = append(names, string(a))
	}
	f.flags = cmd.Flags()
	f.flags.StringVar((*string)(&f.policy.Algorithm), "algorithm", string(cmp.Or(f.Only, defaultAlgorithm)), strings.Join(names, ", "))
	complete(cmd, "algorithm", names...)
}

// complete makes shells complete the values of a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// RegisterPolicy adds --policy, and all flags of a policy but --durability.
func (f *Flags) RegisterPolicy(cmd *cobra.Command) {
	f.registerAlgorithm(cmd)
	f.registerNumbers(cmd)
	f.registerFrom(cmd)
}

func (f *Flags) registerFrom(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(&f.from), "policy", "", "`name` of a policy in the database or a program, or FILE#NAME; with --limit and --period, a name for the policy of these flags (default cli)")
}

// registerNumbers adds the flags of a policy but its name, algorithm and durability.
func (f *Flags) registerNumbers(cmd *cobra.Command) {
	flags := cmd.Flags()
	cli.UnitsVar(flags, &f.policy.Limit, "limit", 0, "`units` allowed per period (required without --policy)")
	cli.DurationVar(flags, &f.policy.Period, "period", time.Minute, "period of the limit, such as 1s, 24h or 30d")
	cli.UnitsVar(flags, &f.policy.Burst, "burst", 0, "`units` allowed at once; 0: same as --limit")
	cli.DurationVar(flags, &f.policy.Tick, "tick", 0, "leak in whole steps, one every tick"+f.implies(limiter.LeakyBucket))
	flags.BoolVar(&f.policy.Aligned, "aligned", false, "align windows to the clock, not to the first request"+f.implies(limiter.FixedWindow))
	var calendars []string
	for _, c := range limiter.Calendars() {
		calendars = append(calendars, string(c))
	}
	flags.StringVar((*string)(&f.policy.Calendar), "calendar", "", "use windows of the calendar instead of --period: "+strings.Join(calendars, ", ")+f.implies(limiter.FixedWindow))
	flags.StringVar(&f.policy.TimeZone, "time-zone", "", "`zone` of the calendar, such as Europe/Vienna; default: UTC")
	flags.StringVar(&f.policy.Anchor, "anchor", "", "`moment` at which a period of the calendar begins: 2024-01-31 or 2024-01-31T09:30; default: 2024-01-01, a Monday")
	complete(cmd, "calendar", calendars...)
	cli.DurationVar(flags, &f.policy.BlockFor, "block-for", 0, "block a key for this long after a denial")
}

// registerWaits adds the flags of the waits of attempts.
func (f *Flags) registerWaits(cmd *cobra.Command) {
	cmd.Flags().Float64Var(&f.policy.BlockGrowth, "block-growth", 0, "`factor` of each further wait of attempts; 0: 2")
	cli.DurationVar(cmd.Flags(), &f.policy.BlockMax, "block-max", 0, "longest wait of attempts; 0: same as --period")
}

// RegisterAttempt adds the flags of a policy of attempts.
func (f *Flags) RegisterAttempt(cmd *cobra.Command) {
	f.Only, f.policy.Algorithm, f.flags = limiter.Attempts, limiter.Attempts, cmd.Flags()
	cli.UnitsVar(f.flags, &f.policy.Limit, "limit", 0, "number of the first `failure` that makes KEY wait (required without --policy)")
	cli.DurationVar(f.flags, &f.policy.Period, "period", 24*time.Hour, "time after the last wait or failure that clears the count")
	cli.UnitsVar(f.flags, &f.policy.Burst, "burst", 0, "`attempts` under way at once, at most; 0: 1")
	cli.DurationVar(f.flags, &f.policy.BlockFor, "block-for", time.Minute, "the first wait")
	f.registerWaits(cmd)
	f.registerFrom(cmd)
	f.registerDurability(cmd)
}

// RegisterAcquire adds the flags of a policy of slots and --cost.
func (f *Flags) RegisterAcquire(cmd *cobra.Command) {
	f.Only, f.policy.Algorithm, f.flags = limiter.Concurrency, limiter.Concurrency, cmd.Flags()
	cli.UnitsVar(f.flags, &f.policy.Limit, "limit", 0, "`units` held at once (required without --policy)")
	cli.DurationVar(f.flags, &f.policy.Period, "period", time.Minute, "how long a slot is held that is not renewed")
	cli.UnitsVar(f.flags, &f.Cost, "cost", 1, "`units` of the slot")
	f.registerFrom(cmd)
	f.registerDurability(cmd)
}

// RegisterBalance adds the flags of a policy of balances.
func (f *Flags) RegisterBalance(cmd *cobra.Command) {
	f.Only, f.policy.Algorithm, f.flags = limiter.Balance, limiter.Balance, cmd.Flags()
	f.registerOverdraft(cmd)
	f.registerFrom(cmd)
	f.registerDurability(cmd)
}

func (f *Flags) registerOverdraft(cmd *cobra.Command) {
	cli.UnitsVar(cmd.Flags(), &f.policy.Overdraft, "overdraft", 0, "`units` that a balance may owe")
}

// AnyOf returns a valid policy of an algorithm, for verbs that do not use its numbers.
func AnyOf(name string, a limiter.Algorithm) limiter.Policy {
	p := limiter.Policy{Name: name, Algorithm: a, Limit: 1, Period: time.Minute}
	switch a {
	case limiter.Attempts:
		p.BlockFor = time.Minute
	case limiter.Balance:
		p.Limit, p.Period = 0, 0
	}
	return p
}

// RegisterDecision adds the flags of RegisterPolicy and --cost.
func (f *Flags) RegisterDecision(cmd *cobra.Command) {
	f.RegisterPolicy(cmd)
	cli.UnitsVar(cmd.Flags(), &f.Cost, "cost", 1, "`units` per request")
}

// RegisterRequest adds the flags of RegisterDecision and --durability, for requests
// to a database.
func (f *Flags) RegisterRequest(cmd *cobra.Command) {
	f.RegisterDecision(cmd)
	f.registerDurability(cmd)
}

// RegisterFloor adds --floor, for commands that take what they request.
func (f *Flags) RegisterFloor(cmd *cobra.Command) {
	cmd.Flags().Float64Var(&f.Floor, "floor", 0, "`share` of the burst that must stay free for others, such as 0.2")
}

// RegisterNote adds --note, for commands that spend from balances.
func (f *Flags) RegisterNote(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.Note, "note", "", "what the units are for, in the ledger of a balance: a `text` of up to 255 bytes; see pglimit ledger")
}

// Request returns a request for the flags' cost above their floor, with their note.
func (f *Flags) Request(p limiter.Policy, key string) limiter.Request {
	return limiter.Request{Policy: p, Key: key, Cost: f.Cost, Floor: f.Floor, Note: f.Note}
}

func (f *Flags) registerDurability(cmd *cobra.Command) {
	choiceVar(cmd, &f.policy.Durability, "durability", "durable, or relaxed: faster, but a crash of the server may forget the last moment's decisions", limiter.Durable, limiter.Relaxed)
}

// implies returns the end of the help of a flag that implies algorithm a.
func (f *Flags) implies(a limiter.Algorithm) string {
	if f.Only != "" {
		return fmt.Sprintf(" (%s)", a)
	}
	return fmt.Sprintf("; implies --algorithm %s", a)
}

// Selection is the value of --policy: the name of a policy in the database, or FILE#NAME.
type Selection string

// InFile reports whether s is FILE#NAME.
func (s Selection) InFile() bool { return strings.Contains(string(s), "#") }

// Read returns the policy of FILE#NAME. It needs no database.
func (s Selection) Read() (limiter.Policy, error) {
	at := strings.LastIndexByte(string(s), '#')
	path, name := string(s[:at]), string(s[at+1:])
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

// Named returns the selection of a policy in the database, or "" if Policy returns the
// policy.
func (f *Flags) Named() Selection {
	if f.from.InFile() || len(f.numbers()) > 0 {
		return ""
	}
	return f.from
}

// Policy returns the policy of FILE#NAME or of the flags, or an error if it is not valid. It
// needs no database, and is an error if Named is not empty.
func (f *Flags) Policy() (limiter.Policy, error) {
	numbers := f.numbers()
	switch given := strings.Join(numbers, ", "); {
	case f.from.InFile() && given == "":
		return f.from.Read()
	case f.from.InFile():
		return limiter.Policy{}, fmt.Errorf("--policy is %.80q, which has all fields of its policy: leave %s out", string(f.from), given)
	case f.from != "" && given == "":
		return limiter.Policy{}, fmt.Errorf("--policy is %.80q: this command reads no policy from the database: use FILE#NAME", string(f.from))
	case f.from != "" && len(f.missing()) > 0:
		return limiter.Policy{}, fmt.Errorf("--policy is %.80q: leave %s out for the policy of that name in the database, or add %s for one of these flags",
			string(f.from), given, strings.Join(f.missing(), ", and "))
	case !f.flags.Changed("limit") && f.policy.Algorithm != limiter.Balance:
		return limiter.Policy{}, errors.New("--limit is missing: set the units allowed per period, or --policy")
	}
	f.policy.Name = cmp.Or(string(f.from), defaultName)
	return f.fromFlags()
}

// numbers returns the flags of a policy's fields that were given. --note is that of a request here.
func (f *Flags) numbers() (given []string) {
	f.flags.Visit(func(flag *pflag.Flag) {
		if flag.Name != "note" && slices.ContainsFunc(policyfile.PolicyFields, func(field policyfile.Field) bool { return flagOf(field) == flag.Name }) {
			given = append(given, "--"+flag.Name)
		}
	})
	return given
}

// missing returns the flags that a new policy needs and that were not given: --limit, and
// --period or --calendar. --period has a default, which a new policy must not get unasked.
func (f *Flags) missing() (flags []string) {
	if f.policy.Algorithm == limiter.Balance {
		return nil
	}
	if !f.flags.Changed("limit") {
		flags = append(flags, "--limit")
	}
	if !f.flags.Changed("period") && f.policy.Calendar == "" {
		flags = append(flags, "--period or --calendar")
	}
	return flags
}

// flagOf returns the name of a field's flag.
func flagOf(f policyfile.Field) string { return strings.ReplaceAll(f.Name, "_", "-") }

// fromFlags returns the policy of the flags.
func (f *Flags) fromFlags() (limiter.Policy, error) {
	p := f.policy.Policy
	if p.Algorithm == limiter.Balance && !f.flags.Changed("period") {
		p.Period = 0 // it is the flag's default
	}
	if f.Only == "" && !f.flags.Changed("algorithm") { // another flag may imply it
		if p.Calendar != "" || p.Aligned {
			p.Algorithm = limiter.FixedWindow
		} else if p.Tick != 0 {
			p.Algorithm = limiter.LeakyBucket
		}
	}
	if p.Calendar != "" && !f.flags.Changed("period") {
		p.Period = 0 // a calendar replaces the flag's default
	}
	return p, p.Validate()
}

// Stored has the flags of a policy in the database. A flag that is not given leaves the
// field as it is.
type Stored struct{ Flags }

// Register adds the flags.
func (s *Stored) Register(cmd *cobra.Command) {
	s.registerAlgorithm(cmd)
	s.registerNumbers(cmd)
	s.registerWaits(cmd)
	s.registerOverdraft(cmd)
	cmd.Flags().Lookup("algorithm").Usage += ", " + string(limiter.Attempts) + ", " + string(limiter.Concurrency) + ", " + string(limiter.Balance)
	cmd.Flags().Lookup("limit").Usage = "`units` allowed per period; a new policy needs it, and --period or --calendar"
	s.registerDurability(cmd)
	choiceVar(cmd, &s.policy.OnError, "on-error", "while the database is away: fail_closed returns an error, fail_open allows, fail_local decides in memory", limiter.FailClosed, limiter.FailOpen, limiter.FailLocal)
	flags := cmd.Flags()
	flags.Float64Var(&s.policy.LocalShare, "local-share", 0, "`part` of the limit that each process may use with fail_local; 0: 0.1")
	flags.Float64Var(&s.policy.Lease, "lease", 0, "`share` of the burst, from 0 to 0.5, that processes may hold for hot keys, such as 0.05")
	flags.Int64Var(&s.policy.MaxKeys, "max-keys", 0, "`keys` that have a row, at most, up to 1e9; 0: no bound")
	flags.Float64Var(&s.policy.RestLimit, "rest-limit", 0, "`units` per period of the row that all other keys share then; 0: they are denied")
	flags.StringVar(&s.policy.Marks, "marks", "", "`percentages` of the burst to record once a key reaches them, such as 80%,100%: see pglimit events")
	flags.StringVar((*string)(&s.policy.UsageBy), "usage-by", "", "keep the units that a key spends in each `hour` or day: see pglimit usage --since")
	complete(cmd, "usage-by", string(limiter.Hour), string(limiter.Day))
	cli.DurationVar(flags, &s.policy.UsageFor, "usage-for", 0, "how long these sums are kept, such as 90d; 0: 31d by the hour, 400d by the day")
	flags.BoolVar(&s.policy.Ledger, "ledger", false, "balances: keep an entry of whatever changes them, see pglimit ledger; --ledger=false: no longer")
	flags.BoolVar(&s.policy.Shadow, "shadow", false, "decide and report, but never deny; --shadow=false: deny again")
	flags.BoolVar(&s.policy.Askers, "askers", false, "let roles that may only request use it, by SQL; --askers=false: no longer")
	flags.BoolVar(&s.policy.CountDenials, "count-denials", false, "count denials by SQL functions for top, find and the dashboard; --count-denials=false: no longer")
	cli.DurationVar(flags, &s.policy.MaxTTL, "max-ttl", 24*time.Hour, "longest reservation of an asker")
	flags.StringVar(&s.policy.Note, "note", "", "why it is so, for the history: a `text` of up to 1,000 characters")
}

// Patch returns policy name as the flags change it: a new one if before is nil, which
// needs a limit and a period or calendar. It validates the result.
func (s *Stored) Patch(name string, before *policies.Stored) (policies.Stored, error) {
	s.policy.Name = name
	after := s.policy
	var err error
	after.Policy, err = s.fromFlags()
	if before == nil {
		if missing := s.whole(name); missing != nil {
			return after, missing
		}
		if err == nil {
			err = after.Validate()
		}
		return after, err
	}
	patched := *before
	s.overwrite(&patched, after)
	return patched, patched.Validate()
}

// whole returns an error unless the flags have all that a new policy needs for a rate.
func (s *Stored) whole(name string) error {
	missing := s.missing()
	if len(missing) == 0 {
		return nil
	}
	limit := "50"
	if s.flags.Changed("limit") {
		limit = s.flags.Lookup("limit").Value.String()
	}
	algorithm := ""
	if s.flags.Changed("algorithm") {
		algorithm = " --algorithm " + string(s.policy.Algorithm)
	}
	return fmt.Errorf("the database has no policy %s, and a new one needs %s: such as `pglimit policy set %s%s --limit %s --period 1h`",
		printable.Shown(name), strings.Join(missing, ", and "), name, algorithm, limit)
}

// overwrite sets the fields of p whose flags were given to those of from.
func (s *Stored) overwrite(p *policies.Stored, from policies.Stored) {
	windows := p.Burst == p.Limit && (p.Algorithm == limiter.FixedWindow || p.Algorithm == limiter.SlidingWindowCounter || p.Algorithm == limiter.SlidingWindowLog)
	if windows { // their burst is their limit
		p.Burst = 0
	}
	p.Note = "" // it is that of the last change
	to, now := reflect.ValueOf(p).Elem(), reflect.ValueOf(from)
	for _, f := range policyfile.PolicyFields {
		if s.flags.Changed(flagOf(f)) {
			to.FieldByName(f.Go).Set(now.FieldByName(f.Go))
		}
	}
	if s.flags.Changed("on-error") && p.OnError != limiter.FailLocal && !s.flags.Changed("local-share") {
		p.LocalShare = 0 // it is for fail_local
	}
	switch { // a calendar and a period replace each other
	case s.flags.Changed("calendar"):
		p.Period = 0
		if p.Calendar == "" || s.flags.Changed("period") {
			p.Period = from.Period
		}
		if p.Calendar == "" {
			p.TimeZone, p.Anchor = from.TimeZone, from.Anchor
		}
	case s.flags.Changed("period"):
		p.Calendar, p.TimeZone, p.Anchor = "", from.TimeZone, from.Anchor
	}
}
