package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
)

func newBlock(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "block", past: "blocked"}
	var fresh bool
	cmd := &cobra.Command{
		Use:   "block KEY DURATION",
		Short: "Deny all requests of a key for a while, under every policy it has",
		Long: `Deny all requests of KEY for DURATION, or until the end of an earlier block if
that is later. DURATION is a number and a unit: ns, us, ms, s, m, h or d (24h).

` + keyHelp + `

A key has a row from its first request until the janitor deletes it, an hour or
more after the row is empty. A key without a row is blocked too if --policy is a
policy in the table pglimit_policy, or with --new, --policy and
--algorithm or --all-algorithms.

` + changeHelp,
		Example: `  pglimit block alice 15m
  pglimit block --policy login --algorithm gcra 203.0.113.7 24h
  pglimit block --prefix 203.0.113. 24h --yes
  pglimit block --new --policy login --algorithm gcra 203.0.113.7 24h`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, err := duration.Parse(args[1])
			if err != nil {
				return fmt.Errorf("DURATION is %q: %w", args[1], err)
			}
			switch {
			case fresh && c.many():
				return errors.New("--new excludes --prefix and --part: a new row needs a whole key")
			case fresh && c.name == "":
				return errors.New("--new needs --policy, and --algorithm or --all-algorithms unless that policy is in the database")
			}
			c.lasts = d
			c.do = func(i *inspect.Inspector, ctx context.Context, targets []inspect.Target, o inspect.Options) ([]inspect.Count, error) {
				return i.Block(ctx, targets, d, o)
			}
			c.more = func(ctx context.Context, i *inspect.Inspector, targets []inspect.Target) ([]inspect.Count, error) {
				return c.blockNew(cmd, db, i, args[0], targets, fresh)
			}
			return c.run(cmd, db, out, args[0])
		},
	}
	c.register(cmd)
	cmd.Flags().BoolVar(&fresh, "new", false, "block KEY under --policy and --algorithm, with a row or without")
	return cmd
}

// blockNew blocks a key that has no row under its policy, if that policy is known or fresh
// is set: under the policy's algorithm or, with fresh and --all-algorithms, under each.
func (c *change) blockNew(cmd *cobra.Command, db *connect.Database, i *inspect.Inspector, key string, targets []inspect.Target, fresh bool) (counts []inspect.Count, err error) {
	if c.many() || c.name == "" {
		return nil, nil
	}
	p, err := c.policy()
	if err != nil {
		return nil, err
	}
	algorithms := limiter.Algorithms()
	if !fresh || !c.all {
		stored, known, err := i.PolicyAlgorithm(cmd.Context(), c.name)
		switch {
		case err != nil:
			return nil, err
		case known && p.Algorithm == "":
			p.Algorithm = limiter.Algorithm(stored)
		case known && string(p.Algorithm) == string(stored), fresh && p.Algorithm != "":
		case fresh:
			return nil, fmt.Errorf("%w: --new needs --algorithm or --all-algorithms: policy %s is not in the database", limiter.ErrInvalid, printable.Shown(c.name))
		default:
			return nil, nil
		}
		algorithms = []limiter.Algorithm{p.Algorithm}
	}
	algorithms = slices.DeleteFunc(algorithms, func(a limiter.Algorithm) bool { // those of targets are blocked by now
		return slices.ContainsFunc(targets, func(t inspect.Target) bool { return t.Policy == p.Name && string(t.Algorithm) == string(a) })
	})
	if len(algorithms) == 0 {
		return nil, nil
	}
	err = db.WithLimiter(cmd, func(l *limiter.Limiter) error {
		for _, p.Algorithm = range algorithms {
			if err := l.Block(cmd.Context(), p, key, c.lasts); err != nil {
				return err
			}
			counts = append(counts, inspect.Count{Policy: p.Name, Algorithm: algorithm.Name(p.Algorithm), Rows: 1})
		}
		return nil
	})
	return counts, err
}

func newUnblock(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "unblock", past: "unblocked", do: (*inspect.Inspector).Unblock}
	return c.command(db, out, &cobra.Command{
		Use:   "unblock KEY",
		Short: "Remove a key's blocks, under every policy it has",
		Long: `Remove KEY's blocks, whether from block or from --block-for, and keep what the key
has used. If the key is not blocked, the answer says so and the exit code is 1.
Processes may remember a denial for another second.

` + keyHelp + `

` + changeHelp,
		Example: `  pglimit unblock alice
  pglimit unblock --policy login --algorithm gcra 203.0.113.7
  pglimit unblock --prefix 203.0.113. --yes`,
	})
}

func newReset(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "reset", past: "reset", do: (*inspect.Inspector).Reset}
	return c.command(db, out, &cobra.Command{
		Use:   "reset KEY",
		Short: "Let a key start from zero, under every policy it has",
		Long: `Let KEY start from zero, as if it had sent no request: delete what it has used and
its blocks. Its overrides and denials stay, as pglimit find shows them. So do open
reservations, but their units count no more. To lift a block only, use unblock; to
erase a person's data, use forget.

If the key has no row, the answer says so and the exit code is 1. Processes may
remember a denial for another second.

` + keyHelp + `

` + changeHelp,
		Example: `  pglimit reset alice
  pglimit reset --policy login --algorithm gcra alice
  pglimit reset --prefix tenant-7/ --yes`,
	})
}

func newForget(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "forget", past: "forgot", asks: true, traces: true, do: (*inspect.Inspector).Forget}
	return c.command(db, out, &cobra.Command{
		Use:   "forget KEY",
		Short: "Erase all data about a key",
		Long: `Erase all data about KEY, such as at a person's request. To let a key start from
zero and keep the rest, use reset. Erased are:

  - its rows: what it has used, and its blocks;
  - its reservations, open or not, and their idempotency keys;
  - its denials;
  - its overrides and the history of their changes, unless --algorithm is given.

Settling or cancelling one of these reservations then fails: there is no such
reservation. A request that comes later makes a new row, and programs write their
denials about once a minute, so run it again after the last request. Backups and
logs keep what they have. It asks first on a terminal; elsewhere it needs --yes.
If there is nothing, the answer says so and the exit code is 1.

` + keyHelp + `

` + changeHelp + `
In changed, reservations, denials, overrides and history count what was deleted.`,
		Example: `  pglimit forget alice
  pglimit forget --part alice --yes
  pglimit forget --prefix tenant-7/ --yes --json`,
	})
}
