package commands

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

// method is a method of Limiter that answers a request.
type method func(*limiter.Limiter, context.Context, limiter.Request) (limiter.Result, error)

// costing is the method of a request's parts.
func costing(do func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)) method {
	return func(l *limiter.Limiter, ctx context.Context, in limiter.Request) (limiter.Result, error) {
		return do(l, ctx, in.Policy, in.Key, in.Cost)
	}
}

// newVerb completes cmd, which runs do for a key and prints its Result; text is the form
// without --json.
func newVerb(db *connect.Database, out *cli.Output, do method, text func(limiter.Result) string, cmd *cobra.Command) *cobra.Command {
	var flags policyflags.Flags
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if args[0] == "-" && cmd.Name() == "allow" {
			return allowLines(cmd, db, out, &flags)
		}
		return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
			request := flags.Request(d.Policy, args[0])
			r, err := do(d.Limiter, cmd.Context(), request)
			if err != nil {
				return cli.LimiterError(err)
			}
			return out.Answer(cmd, r.Allowed, r, text(r)+cli.Floored(request, r)+"\n")
		})
	}
	if flags.RegisterRequest(cmd); cmd.Name() == "allow" {
		flags.RegisterFloor(cmd)
		flags.RegisterNote(cmd)
	}
	return cmd
}

func newAllow(db *connect.Database, out *cli.Output) *cobra.Command {
	return newVerb(db, out, (*limiter.Limiter).Do, cli.Decision, &cobra.Command{
		Use:   "allow KEY|-",
		Short: "Decide a request, and count it if allowed",
		Long: `Decide a request for KEY, and count it if it is allowed.

With - as KEY, each line of standard input is one request: a key, which may have
spaces, or a key, a tab and a cost (default: --cost). The last tab of a line
counts: end each line with one if keys may have tabs. Each request gets one line
of output, in order. Up to 256 lines are decided at once; the lines of one key
are decided in their order. A line is answered without waiting for the next one.
Lines that cannot be read are reported on stderr and skipped; the exit code is
then 2. A change of the policy in the database that --policy names applies to the
lines after it, within a second.

If the application hashes its keys with a secret of 16 bytes or more, set
` + connect.KeySecretEnv + ` to it.

Exit code 0: allowed (with -: done); 1: denied.`,
		Example: `  pglimit allow --limit 10 --period 1m alice && echo allowed
  pglimit allow --policy login alice
  pglimit allow --policy limits.yaml#login alice
  pglimit allow --algorithm gcra --limit 100 --period 1h --burst 20 --cost 5 alice --json
  pglimit allow --policy api --floor 0.2 nightly-export
  pglimit allow --limit 1000 --calendar month --time-zone Europe/Vienna alice
  cut -d' ' -f1 access.log | pglimit allow --limit 60 --period 1m - | sort | uniq -c`,
	})
}

func newAllowUpTo(db *connect.Database, out *cli.Output) *cobra.Command {
	return newVerb(db, out, costing((*limiter.Limiter).AllowUpTo), grant, &cobra.Command{
		Use:   "allow-up-to KEY",
		Short: "Grant as many of the units as fit",
		Long: `Request --cost units of KEY, and get as many of them as fit. granted in the JSON
is their number.

Exit code 0: at least a part was granted; 1: none.`,
		Example: `  pglimit allow-up-to --policy mails --cost 500 newsletter
  n=$(pglimit allow-up-to --policy mails --cost 500 newsletter --json | jq .granted)`,
	})
}

// grant returns the text of what AllowUpTo did.
func grant(r limiter.Result) string {
	if !r.Allowed {
		return cli.Decision(r)
	}
	return "granted " + cli.Units(r.Granted) + strings.TrimPrefix(cli.Decision(r), "allowed")
}

func newCheck(db *connect.Database, out *cli.Output) *cobra.Command {
	return newVerb(db, out, costing((*limiter.Limiter).Check), cli.Decision, &cobra.Command{
		Use:   "check KEY",
		Short: "Report what allow would answer, and count nothing",
		Long: `Report what allow would answer for KEY, and count nothing. With --cost 0 it only
reads the state of the key; then only a block denies it.

Other requests may use up the limit after the answer. To be sure, use allow.

Exit code 0: it would be allowed; 1: it would be denied.`,
		Example: `  pglimit check --limit 10 --period 1m alice
  pglimit check --limit 10 --period 1m --cost 0 alice --json | jq .remaining`,
	})
}

func newCharge(db *connect.Database, out *cli.Output) *cobra.Command {
	return newVerb(db, out, costing((*limiter.Limiter).Charge), moved("charged"), &cobra.Command{
		Use:   "charge KEY",
		Short: "Record units that were already spent",
		Long: `Record --cost units that KEY has already spent, such as a bill that arrived
later. A charge is never denied, and it counts at most up to the burst. granted
in the JSON is the number of units charged.`,
		Example: `  pglimit charge --limit 1000 --period 24h --cost 250 alice
  pglimit charge --limit 1000 --period 24h --cost 250 alice --json | jq .granted`,
	})
}

func newRefund(db *connect.Database, out *cli.Output) *cobra.Command {
	return newVerb(db, out, costing((*limiter.Limiter).Refund), moved("gave back"), &cobra.Command{
		Use:   "refund KEY",
		Short: "Give units back",
		Long: `Give --cost units back to KEY, such as for work that failed. At most the units
that are used go back. granted in the JSON is the number of units given back.

leaky_bucket_queue has no refund: an interrupted wait gives its place back.`,
		Example: `  pglimit refund --limit 10 --period 1m --cost 3 alice
  pglimit refund --limit 10 --period 1m --cost 3 alice --json | jq .granted`,
	})
}

// moved returns the text of what Charge or Refund did.
func moved(what string) func(limiter.Result) string {
	return func(r limiter.Result) string {
		if r.Policy.MaxKeys > 0 && r.Full && r.Granted == 0 && r.Level == 0 {
			return what + " 0: the key has no row, and all that the policy's MaxKeys allows are in use"
		}
		text := fmt.Sprintf("%s %s: %s", what, cli.Units(r.Granted), cli.Left(r))
		if r.Policy.Algorithm == limiter.Balance {
			return text
		}
		text += ", reset after " + cli.Span(r.ResetAfter)
		if r.Full {
			text += ", full"
		}
		return text
	}
}

func newUsage(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var spans spans
	cmd := &cobra.Command{
		Use:   "usage KEY",
		Short: "Show what a key has spent, reserved and left",
		Long: `Show what KEY has spent in the current period, what open reservations have set
aside, and what remains. It counts nothing. For a bucket, spent is what has not
leaked yet. For attempts it shows the failures that count, the attempts under way and
the wait, from places that are not known; for concurrency, the slots that are held.
For a balance it shows the units that were granted, were spent, have expired and are
left. Below them it lists the lots with units, in the order in which they are spent.

With --since it lists instead the units that KEY spent in each hour or day, under a
policy that keeps them: see policy set --usage-by. With --json: {"policy", "since",
"by", "sums": [{"at", "units"}]}.`,
		Example: `  pglimit usage --limit 100000 --calendar month --time-zone Europe/Vienna alice
  pglimit usage --limit 100000 --calendar month alice --json | jq .remaining
  pglimit usage --policy spend alice --since 7d --by day`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := spans.check(cmd); err != nil {
				return err
			}
			if spans.since > 0 {
				return spans.print(cmd, db, out, &flags, args[0])
			}
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				s, err := d.Limiter.Usage(cmd.Context(), d.Policy, args[0])
				if err != nil {
					return cli.LimiterError(err)
				}
				return out.Print(cmd, s, usageText(s))
			})
		},
	}
	flags.RegisterPolicy(cmd)
	spans.register(cmd)
	return cmd
}

func usageText(s limiter.Usage) string {
	if s.Result.Policy.Algorithm == limiter.Attempts {
		text := fmt.Sprintf("failures\t%s of %s\nunder way\t%s of %s\n", cli.Units(s.Result.Level), cli.Units(s.Result.Limit), printable.Count(s.Reservations, "attempt"), cli.Units(s.Result.Burst))
		if s.Result.Remaining == 0 {
			text += "waits\t" + cli.Span(s.Result.RetryAfter) + "\n"
		}
		return cli.Aligned(text)
	}
	if s.Result.Policy.Algorithm == limiter.Concurrency {
		text := fmt.Sprintf("held\t%s of %s in %s\nremaining\t%s\n", cli.Units(s.Result.Level), cli.Units(s.Result.Limit), printable.Count(s.Reservations, "slot"), cli.Units(s.Result.Remaining))
		return cli.Aligned(text)
	}
	if s.Result.Policy.Algorithm == limiter.Balance {
		return cli.Aligned(balanceUsage(s))
	}
	text := fmt.Sprintf("spent\t%s\nreserved\t%s in %s\nremaining\t%s of %s\n", cli.Units(s.Spent), cli.Units(s.Reserved),
		printable.Count(s.Reservations, "open reservation"), cli.Units(s.Result.Remaining), cli.Units(s.Result.Burst))
	if !s.WindowEndsAt.IsZero() {
		text += fmt.Sprintf("until\t%s\n", cli.Moment(s.WindowEndsAt))
	}
	return cli.Aligned(text)
}
