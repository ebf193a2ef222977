package connect

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// KeySecretEnv names the environment variable with limiter.Config.KeySecret, which
// a command line would show to other users.
const KeySecretEnv = "PGLIMIT_KEY_SECRET"

// KeySecret returns the secret for hashing keys; nil if the environment has none.
func KeySecret() []byte {
	if secret, set := lookup(KeySecretEnv); set {
		return []byte(secret)
	}
	return nil
}

// checkKeySecret returns an error for a secret that limiter.New would refuse, in the words
// of the environment. It shows the secret's length only.
func checkKeySecret() error {
	secret, set := lookup(KeySecretEnv)
	switch {
	case set && secret == "":
		return fmt.Errorf("%s is set but empty: set it to the application's secret, or unset it if the application stores keys as they are", KeySecretEnv)
	case set && len(secret) < keys.MinSecret:
		return fmt.Errorf("%s has %s: a secret has at least %d", KeySecretEnv, printable.Count(len(secret), "byte"), keys.MinSecret)
	}
	return nil
}

// NewLimiter returns a limiter on pool without a deny cache, so that every answer
// comes from the database.
func NewLimiter(cmd *cobra.Command, pool *pgxpool.Pool) (*limiter.Limiter, error) {
	return NewLimiterWith(cmd, pool, &limiter.Config{DisableDenyCache: true})
}

// NewLimiterWith returns a limiter on pool with config. It sets config.KeySecret
// from the environment, a Logger for warnings on cmd's stderr unless config has one, and a Timeout of 10 s unless config has one: who types a command
// waits for a busy server.
func NewLimiterWith(cmd *cobra.Command, pool *pgxpool.Pool, config *limiter.Config) (*limiter.Limiter, error) {
	if config.Timeout == 0 && !config.DisableTimeout {
		config.Timeout = 10 * time.Second
	}
	config.KeySecret = KeySecret()
	if config.Logger == nil {
		config.Logger = cli.Warnings(cmd.ErrOrStderr(), slog.LevelWarn)
	}
	return limiter.New(pool, config)
}

// WithPolicies calls use with the policies in the database, opened as by Open.
func (d *Database) WithPolicies(cmd *cobra.Command, use func(*policies.Policies) error) error {
	return d.WithPoliciesOf(cmd, func(_ *pgxpool.Pool, live *policies.Policies) error { return use(live) })
}

// WithPoliciesOf is WithPolicies with the pool.
func (d *Database) WithPoliciesOf(cmd *cobra.Command, use func(*pgxpool.Pool, *policies.Policies) error) error {
	pool, err := d.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	live, err := OpenPolicies(cmd, pool)
	if err != nil {
		return err
	}
	defer live.Close()
	return use(pool, live)
}

// OpenPolicies loads the policies. Close them before the pool. A command ends soon, so it does not listen for changes and
// is not listed as a program.
func OpenPolicies(cmd *cobra.Command, pool *pgxpool.Pool) (*policies.Policies, error) {
	p, err := policies.Open(cmd.Context(), pool, &policies.Config{DisableListen: true, PublishEvery: -1, KeySecret: KeySecret(), Logger: cli.Warnings(cmd.ErrOrStderr(), slog.LevelError)})
	return p, cli.LimiterError(err)
}

// Decider is what a command needs to decide requests.
type Decider struct {
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
	named := flags.Named()
	if named == "" { // wrong flags need no database
		if p, err = flags.Policy(); err != nil {
			return err
		}
	}
	return d.withDecider(cmd, named != "", config, func(pool *pgxpool.Pool, l *limiter.Limiter, live *policies.Policies) error {
		if named == "" {
			return use(Decider{l, p, func() limiter.Policy { return p }})
		}
		if p, err = FindPolicy(cmd, pool, live, named); err != nil {
			return err
		}
		return use(Decider{l, p, func() limiter.Policy {
			if now, err := live.Get(p.Name); err == nil {
				return now
			}
			return p // it was deleted
		}})
	})
}

// WithSelected calls use with the selected policies, in their order, and a limiter. The
// overrides in the database apply.
func (d *Database) WithSelected(cmd *cobra.Command, selected []policyflags.Selection, use func(*limiter.Limiter, []limiter.Policy) error) error {
	all := make([]limiter.Policy, len(selected))
	named := false
	for i, s := range selected {
		var err error
		if !s.InFile() {
			named = true
		} else if all[i], err = s.Read(); err != nil {
			return err
		}
	}
	return d.withDecider(cmd, named, nil, func(pool *pgxpool.Pool, l *limiter.Limiter, live *policies.Policies) error {
		for i, s := range selected {
			var err error
			if s.InFile() {
				continue
			}
			if all[i], err = FindPolicy(cmd, pool, live, s); err != nil {
				return err
			}
		}
		return use(l, all)
	})
}

// FindPolicy returns the policy called name: the database's, or else the default of the program
// that was seen last, as `pglimit why` shows it. A default is added to policies.
func FindPolicy(cmd *cobra.Command, pool *pgxpool.Pool, live *policies.Policies, name policyflags.Selection) (limiter.Policy, error) {
	if p, err := live.Get(string(name)); err == nil {
		return p, nil
	}
	defaults, programs, err := inspect.New(pool).Defaults(cmd.Context())
	p, known := defaults[string(name)]
	switch {
	case err != nil:
		return p, cli.LimiterError(err)
	case !known:
		return p, fmt.Errorf("--policy is %.80q: neither the database nor a program has such a policy: `pglimit policy list --effective` lists them, `pglimit policy set` adds one", string(name))
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "pglimit: --policy is %s: the default of %s, which the database does not have\n", p.Name, printable.Shown(programs[p.Name]))
	return p, live.Default(p)
}

// withDecider calls use with a limiter with config, which may be nil, and, if named is set,
// with the policies in the database, whose overrides then apply.
func (d *Database) withDecider(cmd *cobra.Command, named bool, config *limiter.Config, use func(*pgxpool.Pool, *limiter.Limiter, *policies.Policies) error) error {
	pool, err := d.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	if config == nil {
		config = &limiter.Config{DisableDenyCache: true}
	}
	var live *policies.Policies
	if named {
		if live, err = OpenPolicies(cmd, pool); err != nil {
			return err
		}
		defer live.Close()
		config.Policies = live
	}
	l, err := NewLimiterWith(cmd, pool, config)
	if err != nil {
		return err
	}
	defer l.Close() // before the pool, which returns the place of an interrupted wait
	return use(pool, l, live)
}
