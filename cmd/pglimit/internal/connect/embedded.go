package connect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/migrations"
)

// embeddedWanted reports whether the flags select the embedded server.
func (d *Database) embeddedWanted() bool { return d.embedded || d.dataDir != "" }

// check returns an error if flags contradict each other or have no effect.
func (d *Database) check(cmd *cobra.Command) error {
	if cmd.Flags().Changed("data-dir") && d.dataDir == "" {
		return errors.New("--data-dir is empty: name a directory")
	}
	if d.url != "" && d.embeddedWanted() {
		given := "--embedded"
		if d.dataDir != "" {
			given = "--data-dir"
		}
		return fmt.Errorf("--database-url and %s are both given: use one of them", given)
	}
	return nil
}

// openEmbedded joins the embedded server, starting it if needed, and runs its
// migrations. Leave ends the use.
func (d *Database) openEmbedded(cmd *cobra.Command, o options) (*pgxpool.Pool, error) {
	d.dir = d.dataDir
	if d.dir == "" {
		home, err := embedded.Home()
		if err != nil {
			return nil, fmt.Errorf("find your data directory: %w: name a directory with --data-dir", err)
		}
		d.dir = filepath.Join(home, "postgresql")
	}
	session, err := embedded.Join(cmd.Context(), d.dir, func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
	})
	if err != nil {
		return nil, d.explain(cmd.Context(), err)
	}
	d.session = session
	how := "running already"
	if session.Started {
		how = "started"
	}
	if os.Getenv(databaseEnv) != "" {
		how += "; not " + databaseEnv
	}
	if d.verbose {
		fmt.Fprintf(cmd.ErrOrStderr(), "database: embedded PostgreSQL %s in %s (%s)\n", session.Version, session.Dir, how)
	}
	config, err := pgxpool.ParseConfig(session.URL)
	if err != nil {
		return nil, err
	}
	d.password = config.ConnConfig.Password
	pool, err := openPool(cmd.Context(), config, false)
	if err != nil || o.unmigrated {
		return pool, err
	}
	if err := migrations.Up(cmd.Context(), pool); err != nil {
		pool.Close()
		return nil, d.explain(cmd.Context(), err)
	}
	return pool, nil
}

// explain adds the next step to an error of the server.
func (d *Database) explain(ctx context.Context, err error) error {
	switch text := strings.ToLower(err.Error()); {
	case ctx.Err() != nil:
		return cli.ErrInterrupted
	case errors.Is(err, embedded.ErrUnusable):
		return fmt.Errorf("--data-dir: %w", err)
	case errors.Is(err, localpg.ErrNotFound):
		return cli.DatabaseError(err)
	case strings.Contains(text, "no space left"), strings.Contains(text, "quota exceeded"), strings.Contains(text, "file too large"):
		return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: no space for its data: free some, or name another --data-dir: %w", d.dir, err))
	}
	return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: %w", d.dir, err))
}

// EmbeddedFlags returns the flags that select the embedded server in use, or nil.
func (d *Database) EmbeddedFlags() []string {
	switch {
	case d.session == nil:
		return nil
	case d.dataDir != "":
		return []string{"--data-dir", string(d.session.Dir)}
	}
	return []string{"--embedded"}
}

// Leave ends the use of the embedded server. Without one it does nothing.
func (d *Database) Leave() error {
	if d.session == nil {
		return nil
	}
	if err := d.session.Leave(); err != nil {
		return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL: %w", err))
	}
	return nil
}

// NewKeepEmbedded returns the hidden command that runs the embedded server.
func NewKeepEmbedded() *cobra.Command {
	return &cobra.Command{
		Use:     embedded.KeepCommand + " DIR BINDIR",
		Short:   "Run the embedded server in DIR (called by other commands)",
		Long:    "Run the embedded server in DIR, from the programs in BINDIR or, if that is empty, in\na container, until no command uses it. Commands with --embedded or --data-dir call it.",
		Example: "  pglimit allow --embedded --limit 10 alice\n  pglimit allow --data-dir ./data --limit 10 alice",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.DatabaseError(embedded.Keep(cmd.Context(), args[0], args[1], os.Stdout))
		},
	}
}
