// Package connect opens the database that the flags or the environment name, or
// runs an embedded PostgreSQL server.
package connect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/limiter"
)

// databaseEnv names the environment variable with the database's URL. Unlike a
// flag, other users of the machine do not see it in the process list.
const databaseEnv = "DATABASE_URL"

// connectTimeout is the default for the URL's connect_timeout.
const connectTimeout = 10 * time.Second

// Database is the database that a command line names.
type Database struct {
	url, dataDir string // of --database-url and --data-dir
	embedded     bool   // --embedded
	verbose      bool   // --verbose

	password string            // of the connection, wherever it is from
	dir      string            // data directory, from the flags or the default
	session  *embedded.Session // nil if the embedded server is not in use
}

// Register adds the flags that name a database.
func (d *Database) Register(flags *pflag.FlagSet) {
	flags.StringVar(&d.url, "database-url", "", "the database's `URL`, without a password, because the process list shows it; default: "+databaseEnv)
	flags.BoolVar(&d.embedded, "embedded", false, "run a PostgreSQL server while the command runs")
	flags.BoolVar(&d.verbose, "verbose", false, "name the database on stderr")
	flags.StringVar(&d.dataDir, "data-dir", "", "like --embedded, with the data in `DIR`")
}

// Named reports whether the flags or the environment name a database.
func (d *Database) Named() bool {
	url, _ := lookup(databaseEnv)
	return d.NamedByFlags() || url != "" || os.Getenv(databaseEnv+"_FILE") != ""
}

// NamedByFlags reports whether the flags name a database.
func (d *Database) NamedByFlags() bool { return d.embeddedWanted() || d.url != "" }

// options select how a command opens its database.
type options struct {
	orEmbedded bool // without a named database, run the embedded server
	unmigrated bool // leave the embedded server's tables as they are
	asNamed    bool // in the encoding of other programs with the same connection string
	orAway     bool // return the pool of a database that is away, too
}

// Open connects to the named database, and with --verbose prints its name on stderr. It runs the
// migrations on an embedded server. The caller closes the pool.
func (d *Database) Open(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return d.open(cmd, options{})
}

// OpenOrAway is like Open, but does not wait for a named database that is away: see Await.
func (d *Database) OpenOrAway(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return d.open(cmd, options{orAway: true})
}

// isAway reports whether err may pass by itself, as that of a database that starts.
func isAway(err error) bool {
	err = exec.Translate(err, false)
	return errors.Is(err, limiter.ErrUnavailable) || errors.Is(err, limiter.ErrOverloaded)
}

// Await calls open until its database is not away. If it is at first, it calls waits. It logs that
// at most once a minute.
func Await(ctx context.Context, logger *slog.Logger, waits func(), open func() error) error {
	var logged throttle.Throttle
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := open()
		if err == nil || !isAway(err) || ctx.Err() != nil {
			return err
		}
		if _, passes := logged.Next(time.Minute); passes {
			logger.Warn("pglimit: waiting for the database", "error", err)
		}
		waits()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// OpenOrEmbedded is like Open, but uses the embedded server if no database is
// named.
func (d *Database) OpenOrEmbedded(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return d.open(cmd, options{orEmbedded: true})
}

// OpenUnmigrated is like Open, but runs no migrations on the embedded server.
func (d *Database) OpenUnmigrated(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return d.open(cmd, options{unmigrated: true})
}

// OpenAsNamed is like OpenUnmigrated, but leaves client_encoding to the connection string, the
// role and the database. All other connections have UTF8, in which Go has its texts.
func (d *Database) OpenAsNamed(cmd *cobra.Command) (*pgxpool.Pool, error) {
	return d.open(cmd, options{unmigrated: true, asNamed: true})
}

// WithLimiter calls use with a limiter on the database, opened as by Open, and
// closes the pool when use returns.
func (d *Database) WithLimiter(cmd *cobra.Command, use func(*limiter.Limiter) error) error {
	pool, err := d.Open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := NewLimiter(cmd, pool)
	if err != nil {
		return err
	}
	return use(l)
}

func (d *Database) open(cmd *cobra.Command, o options) (*pgxpool.Pool, error) {
	if err := d.check(cmd); err != nil {
		return nil, err
	}
	if _, err := secrets(); err != nil {
		return nil, err
	}
	if !o.unmigrated { // migrations store no keys
		if err := checkKeySecret(); err != nil {
			return nil, err
		}
	}
	if d.embeddedWanted() || o.orEmbedded && !d.Named() {
		return d.openEmbedded(cmd, o)
	}
	address, from := d.url, "--database-url"
	if address == "" {
		address, _ = lookup(databaseEnv)
		from = databaseEnv
	}
	if address == "" {
		return nil, errors.New("no database is named: set DATABASE_URL or pass --database-url, such as postgres://app@localhost:5432/shop; or pass --embedded, or --data-dir with a directory, for a PostgreSQL that pglimit runs itself")
	}
	config, err := parse(address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; use a form such as postgres://user:password@host:5432/database", from, err)
	}
	d.password = config.ConnConfig.Password
	if d.verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "database: %s\n", describe(config.ConnConfig))
	}
	if !o.asNamed {
		config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8"
	}
	pool, err := openPool(cmd.Context(), config, o.orAway)
	return pool, withoutSetting(err, address, config.ConnConfig)
}

// ServerVersion returns the version of pool's server as the server reports it.
func ServerVersion(ctx context.Context, pool *pgxpool.Pool) (version string, err error) {
	if err := pool.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", cli.DatabaseError(fmt.Errorf("read the server's version: %w", err))
	}
	return version, nil
}

// openPool opens a pool and waits for its first connection, unless orAway is set and the database
// is away.
func openPool(ctx context.Context, config *pgxpool.Config, orAway bool) (*pgxpool.Pool, error) {
	c := config.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "pglimit"
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err == nil {
		if err = pool.Ping(ctx); err == nil || orAway && isAway(err) && ctx.Err() == nil {
			return pool, nil
		}
		pool.Close()
	}
	return nil, cli.DatabaseError(fmt.Errorf("connect: %w", err))
}
