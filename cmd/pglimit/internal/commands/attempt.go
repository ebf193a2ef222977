package commands

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newAttempt(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var o limiter.AttemptOptions
	cmd := &cobra.Command{
		Use:   "attempt KEY",
		Short: "Begin a login or another attempt that may fail, or deny it",
		Long: `Begin an attempt of KEY, such as a login. The answer has its ID, for succeeded and
failed. An attempt that is not reported within --ttl counts as failed.

Only failures count. Failure number --limit makes KEY wait for --block-for. Each
further failure makes it wait --block-growth times longer, up to --block-max. A
success clears the count, and so does --period after the last wait or failure. At
most --burst attempts are under way at once; more are denied. A success makes KEY
remember --from. Attempts from a remembered place are counted separately.

Exit code 0: begun; 1: denied.`,
		Example: `  pglimit attempt --policy login --from 192.0.2.0/24 alice
  id=$(pglimit attempt --limit 3 --block-for 1m alice --json | jq -r .id)
  pglimit succeeded "$id"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				t, err := d.Limiter.Attempt(cmd.Context(), d.Policy, args[0], o)
				if err != nil {
					return cli.LimiterError(err)
				}
				text := cli.Decision(t.Result)
				if t.Result.Allowed {
					text = fmt.Sprintf("begun until %s as %s: %s", cli.Moment(t.ExpiresAt), t.ID, failuresText(t.Result))
				}
				return out.Answer(cmd, t.Result.Allowed, t, text+"\n")
			})
		},
	}
	flags.RegisterAttempt(cmd)
	cmd.Flags().StringVar(&o.From, "from", "", "`place` from which the attempt comes, such as a network or a device; default: not known")
	cli.DurationVar(cmd.Flags(), &o.TTL, "ttl", 30*time.Second, "`time` after which the attempt counts as failed, at least 1s")
	return cmd
}

// failuresText returns the failures that count, and what they mean.
func failuresText(r limiter.Result) string {
	text := printable.Count(int(r.Level), "failure")
	if r.Remaining == 0 {
		return text + " of " + cli.Units(r.Limit) + ", waits"
	}
	return fmt.Sprintf("%s, waits after %s more", text, cli.Units(r.Remaining))
}

func newSucceeded(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "succeeded ID",
		Short: "Report that an attempt succeeded",
		Long: `Report that attempt ID succeeded. It clears the failures and the wait of where the
attempt was counted. Log in only if the exit code is 0.

Exit code 0: reported; 1: nothing was changed, because no such attempt is under
way: it was reported before, or its time ended and it counted as failed.`,
		Example: `  pglimit succeeded attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YWxpY2U
  pglimit succeeded "$id" && echo welcome`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				if err := l.Succeeded(cmd.Context(), args[0]); err != nil {
					return noTicket(cmd, out, "succeeded", args[0], err)
				}
				return out.Print(cmd, ending{Verb: "succeeded", ID: args[0], Found: true}, "succeeded "+args[0]+"\n")
			})
		},
	}
}

func newFailed(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "failed ID",
		Short: "Report that an attempt failed",
		Long: `Report that attempt ID failed. The answer has the failures that count now, as level
in the JSON, and how long the key waits, as retry_after_s.

Exit code 0: reported; 1: nothing was changed, because no such attempt is under
way: it was reported before, or its time ended and it counted as failed.`,
		Example: `  pglimit failed attempts:2QJ6XJZK4R3PLD5W7NBAHT6EYC:login:YWxpY2U
  pglimit failed "$id" --json | jq .retry_after_s`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				r, err := l.Failed(cmd.Context(), args[0])
				if err != nil {
					return noTicket(cmd, out, "failed", args[0], err)
				}
				text := "failed: " + failuresText(r)
				switch {
				case r.Source == limiter.SourceSkipped:
					text = "nothing was counted for this attempt"
				case r.RetryAfter > 0:
					text += " " + cli.Span(r.RetryAfter)
				}
				return out.Print(cmd, r, text+"\n")
			})
		},
	}
}

// noTicket returns the error of succeeded or failed. That no such attempt is under way is an
// answer: no.
func noTicket(cmd *cobra.Command, out *cli.Output, verb, id string, err error) error {
	if !errors.Is(err, limiter.ErrNoTicket) {
		return cli.LimiterError(err)
	}
	message := strings.TrimPrefix(err.Error(), "pglimit: ")
	return out.Answer(cmd, false, ending{Verb: verb, ID: id, Message: message}, "nothing to report: "+message+"\n")
}
