package connect

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/embedded"
)

// keepEmbedded is the name of the hidden command that runs the embedded server. See
// package embedded.
const keepEmbedded = "keep-embedded"

// keeper returns a command that runs this program as keeper of the server in dir.
func keeper(dir, bindir string) (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this program, to run the keeper: %w", err)
	}
	return exec.Command(program, keepEmbedded, "--", dir, bindir), nil
}

// NewKeepEmbedded returns the hidden command that runs the embedded server.
func NewKeepEmbedded() *cobra.Command {
	return &cobra.Command{
		Use:     keepEmbedded + " DIR BINDIR",
		Short:   "Run the embedded server in DIR (called by other commands)",
		Long:    "Run the embedded server in DIR, from the programs in BINDIR, until no command uses\nit. Commands with --embedded or --data-dir call it.",
		Example: "  pglimit allow --embedded --limit 10 alice\n  pglimit allow --data-dir ./data --limit 10 alice",
		Hidden:  true,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.DatabaseError(embedded.Keep(cmd.Context(), args[0], args[1], os.Stdout))
		},
	}
}
