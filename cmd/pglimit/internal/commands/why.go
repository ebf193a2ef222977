package commands

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func newWhy(db *connect.Database, out *cli.Output) *cobra.Command {
	var s selection
	var at string
	var q inspect.WhyQuery
	cmd := &cobra.Command{
		Use:   "why KEY",
		Short: "Show why a key is or was denied",
		Long: `Show what limits KEY under each policy, or limited it --at a moment: the limit in
force, the override, and the denials of the time before by their reason:

  by the limit          the limit leaves too little room
  blocked               the key is blocked
  cost above the burst  the request can never fit, or not above its floor
  overload              too many callers waited for the database

The limit and the override come from the history of the policies in the database,
or from the default policies that programs have now. They are not known if a
program passes the policy with each request. A policy is listed if KEY has a row
under it, denials or an override, or if --policy names it. It counts nothing and locks nothing. If there is no policy,
the exit code is 1.

` + deniedHelp + ` They have times by the minute, and by ten minutes after an hour.

` + keyHelp + `

With --json: {"key", "since", "at", "policies": [{"policy", "algorithm",
"in_force", "origin", "program", "changed_at", "changed_by", "override", "denied",
"now"}]}; in_force is the policy with the override applied, origin is database,
default or empty, denied is as the denials of pglimit find, and now is as a key of
pglimit top.`,
		Example: `  pglimit why alice
  pglimit why alice --policy login --at 14:02
  pglimit why alice --at "2027-01-31 14:02" --within 1d --json | jq '.policies[].denied'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Filter, err = s.filter(); err != nil {
				return err
			}
			if err := s.checkKey(args[0]); err != nil {
				return err
			}
			if at != "" {
				if q.At, err = parseMoment(at, time.Now()); err != nil {
					return fmt.Errorf("--at is %.40q: %w", at, err)
				}
			}
			q.Key, q.Raw = keys.Stored(args[0], connect.KeySecret()), args[0]
			return db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
				why, err := inspect.New(pool).Why(cmd.Context(), live, args[0], q)
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Answer(cmd, len(why.Policies) > 0, why, whyText(why, args[0], s.where()))
			})
		},
	}
	s.registerFilter(cmd)
	cmd.Flags().StringVar(&at, "at", "", "a past `moment`, such as 14:02 or \"2027-01-31 14:02\"; default: now")
	cli.DurationVar(cmd.Flags(), &q.Within, "within", 0, "count denials of this `time` before the moment; default: 1h")
	return cmd
}

// parseMoment reads a moment that has passed, in now's zone: a time of day is the last one.
func parseMoment(text string, now time.Time) (at time.Time, err error) {
	for _, layout := range []string{"15:04", time.TimeOnly} {
		if day, err := time.Parse(layout, text); err == nil {
			at = time.Date(now.Year(), now.Month(), now.Day(), day.Hour(), day.Minute(), day.Second(), 0, now.Location())
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
			return at, nil
		}
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04", time.DateTime} {
		if at, err = time.ParseInLocation(layout, text, now.Location()); err == nil && at.After(now) {
			return at, errors.New("is in the future")
		} else if err == nil {
			return at, nil
		}
	}
	return at, errors.New("use a time such as 14:02, \"2027-01-31 14:02\" or 2027-01-31T14:02:00Z")
}

func whyText(why inspect.Why, key, where string) string {
	if len(why.Policies) == 0 {
		return fmt.Sprintf("%s has no row and no denials since %s %s\n", printable.Shown(key), cli.Moment(why.Since), where)
	}
	var text strings.Builder
	for n, p := range why.Policies {
		if n > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%s, %s: %s now\n", printable.Shown(p.Policy), p.Algorithm, p.Now.Status)
		line := func(name, value string) { fmt.Fprintf(&text, "  %-9s %s\n", name, value) }
		line("limit", limitText(p, why.At))
		if p.Override != nil {
			line("override", overrideOfText(*p.Override))
		}
		deniedText(p, why, line)
		switch k := p.Now; {
		case k.Algorithm == algorithm.Attempts:
			line("known", printable.Count(int(k.KnownSources), "place")+", not counted here")
			if k.Level != nil {
				line("now", fmt.Sprintf("%s of %s failures, %s under way", units(k.Level), units(k.Burst), printable.Count(int(k.Reservations), "attempt")))
			}
		case k.Algorithm == algorithm.Concurrency && k.Level != nil:
			held := fmt.Sprintf("%s of %s held, in %s", units(k.Level), units(k.Burst), printable.Count(int(k.Reservations), "slot"))
			if k.Reservations > 0 && k.EmptyAt != nil {
				held += "; the last ends at " + cli.Moment(*k.EmptyAt) + ", unless renewed"
			}
			line("now", held)
		case k.Algorithm == algorithm.Balance && k.Level != nil:
			line("now", fmt.Sprintf("%s remaining, %s of %s owed; `pglimit usage` has its lots", units(k.Remaining), units(k.Level), units(k.Burst)))
		case k.Level != nil && k.Burst != nil:
			line("now", fmt.Sprintf("%s of %s used, %s remaining", units(k.Level), units(k.Burst), units(k.Remaining)))
		}
		if p.Now.BlockedUntil != nil {
			line("", "blocked until "+cli.Moment(*p.Now.BlockedUntil))
		}
		if p.Now.Blocked {
			line("lift", liftCommand(p.Now, key))
		}
	}
	return text.String()
}

// liftCommand returns the command that lifts a key's blocks. key is as the user has it.
func liftCommand(k inspect.Key, key string) string {
	var all []string
	add := func(verb, key string) {
		if printable.Shown(key) != key {
			key = "KEY" // it may drive a terminal
		}
		all = append(all, fmt.Sprintf("pglimit %s --policy %s -- %s", verb, k.Policy, printable.Shell(key)))
	}
	by := k.BlockedBy
	if by != nil && by.Match != "" {
		add("override delete --"+by.Match, by.Key)
	}
	if k.BlockedUntil != nil || by != nil && by.Match == "" {
		add("unblock", key)
	}
	return strings.Join(all, " && ")
}

// liftText returns commands that lift blocks of keys, for below a list. key is as the user has it;
// "": as they are stored.
func liftText(keys []inspect.Key, key string) (text string) {
	for _, k := range keys {
		line := "to lift a block: " + liftCommand(k, cmp.Or(key, k.Key)) + "\n"
		if k.Blocked && !strings.Contains(text, line) && strings.Count(text, "\n") < 3 { // why has all
			text += line
		}
	}
	if key == "" && connect.KeySecret() != nil {
		text += "keys are hashes: blocks by prefix, pattern or network are not shown; for a key: pglimit why KEY\n"
	}
	if text != "" {
		text = "\n" + text
	}
	return text
}

// limitText returns the limit in force, and where it comes from.
func limitText(p inspect.WhyOfPolicy, at time.Time) string {
	if p.InForce == nil {
		return "not known: neither the database nor a program that it lists had this policy"
	}
	f := p.InForce
	burst := f.Burst
	if burst == 0 {
		burst = f.Limit
	}
	text := ""
	switch f.Algorithm {
	case limiter.Balance:
		text = "prepaid units"
		if f.Overdraft > 0 {
			text += ", and up to " + cli.Units(f.Overdraft) + " owed"
		}
	case limiter.Attempts:
		text = fmt.Sprintf("waits from %s on, of %s to %s", printable.Count(int(f.Limit), "failure"), duration.Format(f.BlockFor), duration.Format(cmp.Or(f.BlockMax, f.Period)))
	case limiter.Concurrency:
		text = fmt.Sprintf("%s held at once, each for %s", cli.Units(f.Limit), duration.Format(f.Period))
	default:
		text = fmt.Sprintf("%s per %s, burst %s", cli.Units(f.Limit), perText(*f), cli.Units(burst))
	}
	if f.Shadow {
		text += ", shadow"
	}
	if p.Origin == inspect.OriginDefault {
		return text + "; a default policy of " + printable.Shown(p.Program)
	}
	return text + fmt.Sprintf("; in the database since %s, by %s", cli.Moment(p.ChangedAt), printable.Shown(p.ChangedBy))
}

// overrideOfText returns an override, when it was made, by whom and why.
func overrideOfText(o policies.Override) string {
	text := overrideText(o)
	if o.Match != "" {
		text += " for " + printable.Shown(o.Key)
	}
	text += fmt.Sprintf("; since %s, by %s", cli.Moment(o.ChangedAt), printable.Shown(o.ChangedBy))
	if o.Note != "" {
		text += ": " + quotedLine(o.Note)
	}
	return text
}

// deniedText writes the lines about denials.
func deniedText(p inspect.WhyOfPolicy, why inspect.Why, line func(name, value string)) {
	d := p.Denied
	if d == nil {
		line("denied", "not from "+cli.Moment(why.Since)+" to "+cli.Moment(why.At))
		return
	}
	line("denied", fmt.Sprintf("%s for %s, from %s to %s", printable.Count(int(d.Denials), "time"), cli.Units(d.Units)+" units", cli.Moment(d.FirstDeniedAt), cli.Moment(d.LastDeniedAt)))
	var reasons []string
	for _, r := range []struct {
		n    int64
		text string
	}{{d.ByLimit, "by the limit"}, {d.Blocked, "blocked"}, {d.AboveBurst, "cost above the burst"}, {d.Overloaded, "overload"}} {
		if r.n > 0 {
			reasons = append(reasons, fmt.Sprintf("%d %s", r.n, r.text))
		}
	}
	line("", strings.Join(reasons, ", "))
	if d.Shadowed > 0 {
		line("", fmt.Sprintf("%d of them were let pass, because the policy was a shadow", d.Shadowed))
	}
	switch {
	case d.RetryAt != nil:
		line("room", "from "+cli.Moment(*d.RetryAt)+" on, as of these denials")
	case d.AboveBurst == d.Denials:
		line("room", "never: ask for less at once")
	}
}
