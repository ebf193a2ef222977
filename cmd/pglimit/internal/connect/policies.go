package connect

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// WithPolicies calls use with the policies in the database, opened as by Open.
func (d *Database) WithPolicies(cmd *cobra.Command, use func(*limiter.Policies) error) error {
	return d.WithPoolAndPolicies(cmd, func(_ *pgxpool.Pool, policies *limiter.Policies) error { return use(policies) })
}

// WithPoolAndPolicies is WithPolicies with the pool that they were opened with.
func (d *Database) WithPoolAndPolicies(cmd *cobra.Command, use func(*pgxpool.Pool, *limiter.Policies) error) error {
	pool, err := d.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	policies, err := openPolicies(cmd, pool)
	if err != nil {
		return err
	}
	defer policies.Close()
	return use(pool, policies)
}

// openPolicies loads the policies. A command ends soon, so it does not listen for changes.
func openPolicies(cmd *cobra.Command, pool *pgxpool.Pool) (*limiter.Policies, error) {
	p, err := limiter.OpenPolicies(cmd.Context(), pool, &limiter.PoliciesConfig{DisableListen: true, KeySecret: KeySecret()})
	return p, cli.LimiterError(err)
}

// Decider is what a command needs to decide requests.
type Decider struct {
	Pool    *pgxpool.Pool
	Limiter *limiter.Limiter
	Policy  limiter.Policy
	// Current returns Policy as it is now, for commands that go on for long: a policy that
	// the flags name may change in the database.
	Current func() limiter.Policy
}

// WithPolicy calls use with the policy that the flags describe or name, and a limiter with
// config, which may be nil. The overrides in the database apply to a policy that the flags
// name.
func (d *Database) WithPolicy(cmd *cobra.Command, flags *policyflags.Flags, config *limiter.Config, use func(Decider) error) error {
	var p limiter.Policy
	var err error
	if flags.Named() == "" { // wrong flags need no database
		if p, err = flags.Policy(); err != nil {
			return err
		}
	}
	pool, err := d.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	if config == nil {
		config = &limiter.Config{DisableDenyCache: true}
	}
	current := func() limiter.Policy { return p }
	if flags.Named() != "" {
		policies, err := openPolicies(cmd, pool)
		if err != nil {
			return err
		}
		defer policies.Close()
		if p, err = flags.Find(policies); err != nil {
			return err
		}
		config.Policies = policies
		current = func() limiter.Policy {
			if now, err := policies.Get(p.Name); err == nil {
				return now
			}
			return p // it was deleted
		}
	}
	l, err := NewLimiterWith(pool, config)
	if err != nil {
		return err
	}
	defer l.Close() // before the pool, which returns the place of an interrupted wait
	return use(Decider{pool, l, p, current})
}
