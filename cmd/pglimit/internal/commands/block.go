package commands

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func newBlock(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "block", past: "blocked"}
	var fresh bool
	var until, note string
	cmd := &cobra.Command{
		Use:   "block KEY [DURATION]",
		Short: "Deny all requests of a key, or of many, now and to come",
		Long: `Deny all requests of KEY for DURATION, or until the end of an earlier block if
that is later. DURATION is a number and a unit: ns, us, ms, s, m, h or d (24h).

With a --policy that the database or a program has, the block is stored as an
override of it: for DURATION, or --until a day, or without an end. It holds for
keys to come, within a second, in programs that pass limiter.Config.Policies, the
SQL functions by name and commands with --policy. Its --note and author are in the
history. KEY is one key or, with a flag, stands for many:

  --prefix   keys that begin with KEY
  --pattern  keys that match KEY as a whole; * is any characters, and ? any one
  --cidr     addresses and networks in the network KEY, alone or as the last part
             of a key

A policy can have 1,000 of these, and 100 patterns. To exempt keys from them:
pglimit override set KEY --unlimited, with the same flags.

Otherwise the rows of KEY are blocked.

` + keyHelp + `

A key has a row from its first request until the janitor deletes it, an hour or
more after the row is empty. A key without a row is blocked too with --new,
--policy, and --algorithm or --all-algorithms.

` + changeHelp + `
For a stored block the JSON is {"override", "fields", "version"}.`,
		Example: `  pglimit block alice 15m
  pglimit block alice --policy login --until friday --note "shared password"
  pglimit block bot- --prefix --policy login 24h
  pglimit block '*@spam.example' --pattern --policy signup
  pglimit block 203.0.113.0/24 --cidr --policy login --note "ticket 4711"
  pglimit block --new --policy login --algorithm gcra 203.0.113.7 24h`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if len(args) == 2 {
				if c.lasts, err = duration.Parse(args[1]); err != nil {
					return fmt.Errorf("DURATION is %q: %w", args[1], err)
				}
			}
			switch {
			case len(args) == 2 && c.lasts <= 0:
				return fmt.Errorf("DURATION is %q: must be above 0", args[1])
			case fresh && c.many():
				return errors.New("--new excludes --prefix and --part: a new row needs a whole key")
			case fresh && (c.name == "" || c.algorithm == "" && !c.all):
				return errors.New("--new needs --policy, and --algorithm or --all-algorithms")
			case until != "" && len(args) == 2:
				return errors.New("--until excludes DURATION: give one of them")
			}
			if c.name != "" && c.algorithm == "" && !c.all && !c.part {
				if stored, err := c.store(cmd, db, out, args[0], until, note); stored || err != nil {
					return err
				}
			}
			switch {
			case c.pattern || c.cidr || until != "" || note != "":
				return errors.New("--pattern, --cidr, --until and --note need --policy, with a policy that the database or a program has, and exclude --algorithm and --part")
			case len(args) == 1:
				return errors.New("DURATION is missing: only a --policy that the database or a program has can have a block without one")
			}
			c.do = func(i *inspect.Inspector, ctx context.Context, targets []inspect.Target, o inspect.Options) ([]inspect.Count, error) {
				return i.Block(ctx, targets, c.lasts, o)
			}
			if fresh {
				c.more = func(targets []inspect.Target) ([]inspect.Count, error) { return c.blockNew(cmd, db, args[0], targets) }
			}
			return c.run(cmd, db, out, args[0])
		},
	}
	c.register(cmd)
	c.registerMatch(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&fresh, "new", false, "block KEY under --policy and --algorithm, with a row or without")
	flags.StringVar(&until, "until", "", "the last `day` of a stored block: 2027-01-31, friday, or 30d; or a time; default: none")
	flags.StringVar(&note, "note", "", "why, for the history of a stored block: a `text` of up to 1,000 characters")
	return cmd
}

// store stores the block of KEY as an override, unless neither the database nor a program has the
// policy.
func (c *change) store(cmd *cobra.Command, db *connect.Database, out *cli.Output, key, until, note string) (stored bool, err error) {
	o := policies.Override{Policy: c.name, Key: key, Match: c.match(), Blocked: true, Note: note}
	if c.lasts > 0 {
		o.Until = time.Now().Add(c.lasts).UTC()
	}
	if o.Until, err = untilFlag(until, o.Until); err != nil {
		return false, err
	}
	err = db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
		if stored = findPolicy(live, c.name) != nil; !stored {
			defaults, _, err := inspect.New(pool).Defaults(cmd.Context())
			if _, stored = defaults[c.name]; !stored {
				return cli.LimiterError(err)
			}
		}
		before, err := findOverride(cmd, live, o)
		switch {
		case err != nil:
			return err
		case before != nil && !before.Blocked:
			return fmt.Errorf("%s has another override of %s: %s. Delete it first with `pglimit override delete`, or block the row with --algorithm", c.subject(key), c.name, overrideText(*before))
		}
		return setOverride(cmd, out, live, o, before)
	})
	return stored, err
}

// blockNew blocks a key that has no row: under the algorithm, or under each.
func (c *change) blockNew(cmd *cobra.Command, db *connect.Database, key string, targets []inspect.Target) (counts []inspect.Count, err error) {
	p, err := c.policy()
	if err != nil {
		return nil, err
	}
	algorithms := limiter.Algorithms()
	if !c.all {
		algorithms = []limiter.Algorithm{p.Algorithm}
	}
	algorithms = slices.DeleteFunc(algorithms, func(a limiter.Algorithm) bool { // those of targets are blocked by now
		return slices.ContainsFunc(targets, func(t inspect.Target) bool { return t.Policy == p.Name && string(t.Algorithm) == string(a) })
	})
	if len(algorithms) == 0 {
		return nil, nil
	}
	err = db.WithPoliciesOf(cmd, func(pool *pgxpool.Pool, live *policies.Policies) error {
		known, err := live.Get(p.Name)
		if err != nil { // a program may have it, or none
			defaults, _, failed := inspect.New(pool).Defaults(cmd.Context())
			if failed != nil {
				return cli.LimiterError(failed)
			}
			known = defaults[p.Name]
		}
		l, err := connect.NewLimiter(cmd, pool)
		if err != nil {
			return err
		}
		defer l.Close()
		for _, p.Algorithm = range algorithms {
			p.MaxKeys = 0
			if rowsOf(p.Algorithm) == rowsOf(known.Algorithm) {
				p.MaxKeys = known.MaxKeys // a new row must not exceed it
			}
			if err := l.Block(cmd.Context(), p, key, c.lasts); err != nil {
				return err
			}
			counts = append(counts, inspect.Count{Policy: p.Name, Algorithm: algorithm.Name(p.Algorithm), Rows: 1})
		}
		return nil
	})
	return counts, err
}

// rowsOf returns the algorithm that a's rows are called by.
func rowsOf(a limiter.Algorithm) limiter.Algorithm {
	if a == limiter.GCRA {
		return limiter.TokenBucket
	}
	return a
}

func newUnblock(db *connect.Database, out *cli.Output) *cobra.Command {
	c := change{verb: "unblock", past: "unblocked", do: (*inspect.Inspector).Unblock}
	var note string
	cmd := c.command(db, out, &cobra.Command{
		Use:   "unblock KEY",
		Short: "Remove a key's blocks, or those of many keys",
		Long: `Remove KEY's blocks, whether from block or from --block-for, and keep what the key
has used. Blocks that are stored with a policy are deleted too, under --policy or
all, unless --algorithm is given. With --prefix, --pattern or --cidr these are the
ones that block made of the same KEY and flag; with --prefix also those of single
keys. If nothing is blocked, the answer says so and the exit code is 1. Processes
may remember a denial for another second.

` + keyHelp + `

` + changeHelp + `
In changed, overrides counts the stored blocks.`,
		Example: `  pglimit unblock alice
  pglimit unblock --policy login --algorithm gcra 203.0.113.7
  pglimit unblock 203.0.113.0/24 --cidr --policy login --note "ticket 4711 is closed"
  pglimit unblock --prefix 203.0.113. --yes`,
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.more = func([]inspect.Target) ([]inspect.Count, error) { return c.lift(cmd, db, args[0], note) }
		if c.match() == "" || c.prefix && connect.KeySecret() == nil {
			return c.run(cmd, db, out, args[0])
		}
		if _, err := c.filter(); err != nil { // no row has what the flag selects
			return err
		}
		counts, err := c.more(nil)
		if err != nil {
			return err
		}
		return c.report(cmd, out, args[0], 0, counts)
	}
	c.registerMatch(cmd)
	cmd.Flags().StringVar(&note, "note", "", "why, for the history of a stored block: a `text` of up to 1,000 characters")
	return cmd
}

// lift deletes the stored blocks that KEY and the flags select.
func (c *change) lift(cmd *cobra.Command, db *connect.Database, key, note string) (counts []inspect.Count, err error) {
	if c.algorithm != "" || c.part {
		return nil, nil
	}
	text, match := key, c.match()
	if match == "" {
		text = keys.Stored(key, connect.KeySecret())
	}
	err = db.WithPolicies(cmd, func(live *policies.Policies) error {
		all, err := live.Overrides(cmd.Context(), c.name)
		if err != nil {
			return cli.LimiterError(err)
		}
		edit := policies.Edit{Note: note}
		for _, o := range all {
			one := o.Match == match && o.Key == text
			if !o.Blocked || !one && !(c.prefix && o.Match == "" && strings.HasPrefix(o.Key, text)) {
				continue
			}
			if one {
				o.Key = key // as it was before it was hashed
			}
			edit.DeleteOverrides = append(edit.DeleteOverrides, o)
			if n := len(counts); n == 0 || counts[n-1].Policy != o.Policy {
				counts = append(counts, inspect.Count{Policy: o.Policy})
			}
			counts[len(counts)-1].Overrides++
		}
		if len(counts) > 0 {
			_, err = live.Apply(cmd.Context(), edit)
		}
		return cli.LimiterError(err)
	})
	return counts, err
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
denials every few seconds, so run it again after the last request. Backups and
logs keep what they have. It asks first on a terminal; elsewhere it needs --yes.
If there is nothing, the answer says so and the exit code is 1.

A place of attempts, such as an address, is stored under the keys from which it
succeeded. It is not erased as KEY: forget these keys too.

` + keyHelp + `

` + changeHelp + `
In changed, reservations, denials, overrides and history count what was deleted.`,
		Example: `  pglimit forget alice
  pglimit forget --part alice --yes
  pglimit forget --prefix tenant-7/ --yes --json`,
	})
}
