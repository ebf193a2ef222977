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
	"github.com/pglimit/pglimit/limiter"
)

func newAcquire(db *connect.Database, out *cli.Output) *cobra.Command {
	var flags policyflags.Flags
	var ttl time.Duration
	wait := false
	cmd := &cobra.Command{
		Use:   "acquire KEY",
		Short: "Take a slot of a key, of which only so many are held at once",
		Long: `Take a slot of KEY, or be denied. At most --limit units of KEY are held at once, over
all programs. The answer has the slot's ID, for renew and release, and its fence, a
number that grows with each slot. The slot ends after --ttl unless it is renewed.

Exit code 0: acquired; 1: denied.`,
		Example: `  pglimit acquire --policy exports acme
  id=$(pglimit acquire --limit 2 --period 10m --wait nightly --json | jq -r .id)
  pglimit release "$id"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithPolicy(cmd, &flags, nil, func(d connect.Decider) error {
				acquire := d.Limiter.DoAcquire
				if wait {
					acquire = d.Limiter.AcquireWait
				}
				s, err := acquire(cmd.Context(), flags.Request(d.Policy, args[0]), ttl)
				if err != nil {
					return cli.LimiterError(err)
				}
				text := cli.Decision(s.Result)
				if s.Result.Allowed {
					text = fmt.Sprintf("acquired until %s as %s, fence %d: %s of %s held", cli.Moment(s.ExpiresAt), s.ID, s.Fence, cli.Units(s.Result.Level), cli.Units(s.Result.Limit))
				}
				return out.Answer(cmd, s.Result.Allowed, s, text+"\n")
			})
		},
	}
	flags.RegisterAcquire(cmd)
	cli.DurationVar(cmd.Flags(), &ttl, "ttl", 0, "`time` for which the slot is held, at least 1s; 0: same as --period")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until a slot is free")
	return cmd
}

func newRenew(db *connect.Database, out *cli.Output) *cobra.Command {
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:   "renew ID",
		Short: "Hold a slot for longer",
		Long: `Hold slot ID for --ttl from now.

Exit code 0: renewed; 1: nothing was changed, because no such slot is held: it was
released before, or it has ended. Stop what it was for.`,
		Example: `  pglimit renew concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:exports:YWNtZQ
  while sleep 20 && pglimit renew "$id" --ttl 1m; do :; done`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				until, err := l.Renew(cmd.Context(), args[0], ttl)
				if err != nil {
					return noSlot(cmd, out, "renew", args[0], err)
				}
				renewed := struct {
					ending
					ExpiresAt time.Time `json:"expires_at"`
				}{ending{Verb: "renew", ID: args[0], Found: true}, until}
				return out.Print(cmd, renewed, fmt.Sprintf("renewed %s until %s\n", args[0], cli.Moment(until)))
			})
		},
	}
	cli.DurationVar(cmd.Flags(), &ttl, "ttl", 0, "`time` for which the slot is held, at least 1s; 0: the policy's period")
	return cmd
}

func newRelease(db *connect.Database, out *cli.Output) *cobra.Command {
	return &cobra.Command{
		Use:   "release ID",
		Short: "Give a slot back",
		Long: `Give slot ID back.

Exit code 0: released; 1: nothing was changed, because no such slot is held: it was
released before, or it has ended.`,
		Example: `  pglimit release concurrency:2QJ6XJZK4R3PLD5W7NBAHT6EYC:exports:YWNtZQ`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return db.WithLimiter(cmd, func(l *limiter.Limiter) error {
				if err := l.Release(cmd.Context(), args[0]); err != nil {
					return noSlot(cmd, out, "release", args[0], err)
				}
				return out.Print(cmd, ending{Verb: "release", ID: args[0], Found: true}, "released "+args[0]+"\n")
			})
		},
	}
}

// noSlot returns the error of renew or release. That no such slot is held is an answer: no.
func noSlot(cmd *cobra.Command, out *cli.Output, verb, id string, err error) error {
	if !errors.Is(err, limiter.ErrNoSlot) {
		return cli.LimiterError(err)
	}
	message := strings.TrimPrefix(err.Error(), "pglimit: ")
	return out.Answer(cmd, false, ending{Verb: verb, ID: id, Message: message}, "nothing to "+verb+": "+message+"\n")
}
