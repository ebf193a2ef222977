package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/internal/embedded"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/migrations"
)

// embeddedFlags ask for a PostgreSQL server that the command runs itself.
type embeddedFlags struct {
	yes      bool
	dataDir  string
	download bool
}

func (f *embeddedFlags) register(flags *pflag.FlagSet) {
	flags.BoolVar(&f.yes, "embedded", false, "run a PostgreSQL server for as long as the command runs")
	flags.StringVar(&f.dataDir, "data-dir", "", "--embedded with its data in `DIR`")
	flags.BoolVar(&f.download, "download", false, "with --embedded: fetch a server if none is installed")
}

// wanted tells whether the flags name the embedded server.
func (f *embeddedFlags) wanted() bool { return f.yes || f.dataDir != "" }

// check refuses flags that contradict each other, or do nothing.
func (f *embeddedFlags) check(cmd *cobra.Command, databaseURL string, otherwise fallback) error {
	if cmd.Flags().Changed("data-dir") && f.dataDir == "" {
		return errors.New("--data-dir is empty: name a directory")
	}
	var given string
	switch {
	case f.dataDir != "":
		given = "--data-dir"
	case f.yes:
		given = "--embedded"
	case f.download:
		given = "--download"
	}
	if given != "" && databaseURL != "" {
		return fmt.Errorf("--database-url and %s are both given: take one of them", given)
	}
	if f.download && !f.wanted() && otherwise != embeddedDatabase {
		return errors.New("--download fetches a server to run: pass --embedded or --data-dir with it")
	}
	return nil
}

// openEmbedded joins the embedded server, starting it if need be, sees to its
// tables, and says on stderr which server it is. leave ends the use.
func (a *app) openEmbedded(cmd *cobra.Command) (*pgxpool.Pool, error) {
	dir := a.embedded.dataDir
	if dir == "" {
		home, err := embedded.Home()
		if err != nil {
			return nil, fmt.Errorf("find your data directory: %w: name a directory with --data-dir", err)
		}
		dir = filepath.Join(home, "postgresql")
	}
	session, err := embedded.Join(cmd.Context(), embedded.Options{
		Dir:    dir,
		Find:   func(ctx context.Context, major string) (string, error) { return a.findServer(ctx, cmd, major) },
		Keeper: keeperCommand,
	})
	if err != nil {
		return nil, embeddedError(cmd.Context(), dir, err)
	}
	a.session = session
	how := "running already"
	if session.Started() {
		how = "started"
	}
	if os.Getenv("DATABASE_URL") != "" {
		how += "; not DATABASE_URL"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "database: embedded PostgreSQL %s in %s (%s)\n", session.Version(), session.Dir(), how)

	cfg, err := pgxpool.ParseConfig(session.URL())
	if err != nil {
		return nil, err
	}
	pool, err := connect(cmd.Context(), cfg)
	if err != nil {
		return nil, err
	}
	if cmd.HasParent() && cmd.Parent().Name() == "migrate" {
		return pool, nil // it runs the migrations itself, or undoes them
	}
	if err := migrations.Up(cmd.Context(), pool); err != nil {
		pool.Close()
		return nil, embeddedError(cmd.Context(), dir, err)
	}
	return pool, nil
}

// leave ends the use of the embedded server, if there was any.
func (a *app) leave() error {
	if a.session == nil {
		return nil
	}
	if err := a.session.Leave(); err != nil {
		return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL: %w", err))
	}
	return nil
}

// embeddedError says of an error what to do about it.
func embeddedError(ctx context.Context, dir string, err error) error {
	switch text := strings.ToLower(err.Error()); {
	case ctx.Err() != nil:
		return cli.ErrInterrupted
	case errors.Is(err, embedded.ErrUnusable):
		return fmt.Errorf("--data-dir: %w", err)
	case errors.Is(err, localpg.ErrNotFound):
		return cli.DatabaseError(fmt.Errorf("%w; or pass --download to fetch one", err))
	case strings.Contains(text, "no space left"), strings.Contains(text, "quota exceeded"), strings.Contains(text, "file too large"):
		return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: no room for its data: make some, or name a --data-dir elsewhere: %w", dir, err))
	}
	return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: %w", dir, err))
}

// findServer returns the directory of the server programs to run: those
// installed or, if there are none and --download is set, fetched ones.
func (a *app) findServer(ctx context.Context, cmd *cobra.Command, major string) (string, error) {
	bindir, _, err := localpg.FindMajor(major)
	if err != nil && errors.Is(err, localpg.ErrNotFound) && a.embedded.download {
		return fetchServer(ctx, major, func(format string, args ...any) {
			fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
		})
	}
	return bindir, err
}

// keeper is the name of the hidden command that runs the embedded server; see
// package embedded.
const keeper = "keep-embedded"

// keeperCommand prepares this program as a keeper.
func keeperCommand(dir, bindir string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program, to run the server from: %w", err)
	}
	return exec.Command(program, keeper, "--", dir, bindir), nil
}

func newKeepEmbedded() *cobra.Command {
	return &cobra.Command{
		Use:     keeper + " DIR BINDIR",
		Short:   "Run the embedded server in DIR (commands call this by themselves)",
		Long:    "Run the embedded server in DIR, from the programs in BINDIR, until no command uses\nit. Commands with --embedded or --data-dir call this by themselves.",
		Example: "  pglimit allow --embedded --limit 10 alice",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.DatabaseError(embedded.Keep(cmd.Context(), args[0], args[1], os.Stdout))
		},
	}
}
