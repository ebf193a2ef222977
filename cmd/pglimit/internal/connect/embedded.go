package connect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded"
	"github.com/pglimit/pglimit/internal/localpg"
)

// embeddedServer has the flags of the embedded PostgreSQL server and, after join,
// its session.
type embeddedServer struct {
	embedded bool
	dataDir  string

	dir     string            // data directory, from the flags or the default
	session *embedded.Session // nil if the server is not in use
}

func (s *embeddedServer) register(flags *pflag.FlagSet) {
	flags.BoolVar(&s.embedded, "embedded", false, "run a PostgreSQL server while the command runs")
	flags.StringVar(&s.dataDir, "data-dir", "", "like --embedded, with the data in `DIR`")
}

// wanted reports whether the flags select the embedded server.
func (s *embeddedServer) wanted() bool { return s.embedded || s.dataDir != "" }

// check returns an error if flags contradict each other or have no effect. other:
// another flag names a database.
func (s *embeddedServer) check(cmd *cobra.Command, other bool) error {
	if cmd.Flags().Changed("data-dir") && s.dataDir == "" {
		return errors.New("--data-dir is empty: name a directory")
	}
	var given string
	switch {
	case s.dataDir != "":
		given = "--data-dir"
	case s.embedded:
		given = "--embedded"
	}
	if given != "" && other {
		return fmt.Errorf("--database-url and %s are both given: use one of them", given)
	}
	return nil
}

// join joins the server, starting it if needed. leave ends the use.
func (s *embeddedServer) join(cmd *cobra.Command) (*embedded.Session, error) {
	s.dir = s.dataDir
	if s.dir == "" {
		home, err := embedded.Home()
		if err != nil {
			return nil, fmt.Errorf("find your data directory: %w: name a directory with --data-dir", err)
		}
		s.dir = filepath.Join(home, "postgresql")
	}
	session, err := embedded.Join(cmd.Context(), s.dir, func(format string, args ...any) {
		fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...)
	})
	if err != nil {
		return nil, s.explain(cmd.Context(), err)
	}
	s.session = session
	return session, nil
}

// explain adds the next step to an error of the server.
func (s *embeddedServer) explain(ctx context.Context, err error) error {
	switch text := strings.ToLower(err.Error()); {
	case ctx.Err() != nil:
		return cli.ErrInterrupted
	case errors.Is(err, embedded.ErrUnusable):
		return fmt.Errorf("--data-dir: %w", err)
	case errors.Is(err, localpg.ErrNotFound):
		return cli.DatabaseError(err)
	case strings.Contains(text, "no space left"), strings.Contains(text, "quota exceeded"), strings.Contains(text, "file too large"):
		return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: no space for its data: free some, or name another --data-dir: %w", s.dir, err))
	}
	return cli.DatabaseError(fmt.Errorf("embedded PostgreSQL in %s: %w", s.dir, err))
}

// flagsInUse returns the flags that select the server in use, or nil.
func (s *embeddedServer) flagsInUse() []string {
	switch {
	case s.session == nil:
		return nil
	case s.dataDir != "":
		return []string{"--data-dir", string(s.session.Dir)}
	}
	return []string{"--embedded"}
}

// leave ends the use of the server. Without one it does nothing.
func (s *embeddedServer) leave() error {
	if s.session == nil {
		return nil
	}
	if err := s.session.Leave(); err != nil {
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
