package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

// app is what the subcommands share: the global flags.
type app struct {
	db  connect.Database
	out cli.Output
}

// run runs the command line args, without the program's name, and returns the
// exit code. An error is one line on stderr.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root, a := newRoot()
	root.SetArgs(args)
	root.SetIn(cli.Interruptible(ctx, stdin))
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root) // it keeps the stdout of now
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, a.db.Leave())
	code, silent := cli.ExitCode(ctx, err)
	if silent {
		return code
	}
	message := strings.TrimPrefix(strings.ReplaceAll(err.Error(), ": pglimit: ", ": "), "pglimit: ")
	if code == cli.ExitUsage {
		message += "; see `" + cmd.CommandPath() + " --help`"
	}
	fmt.Fprintln(stderr, "pglimit: "+oneLine(message))
	return code
}

// oneLine joins the lines of an error that has several, as those of connecting
// to several hosts do.
func oneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}

func newRoot() (*cobra.Command, *app) {
	a := &app{}
	root := &cobra.Command{
		Use:   "pglimit",
		Short: "Rate limits in PostgreSQL",
		Long: `Rate limits in PostgreSQL: set up the tables, ask, and look after them.

The database is named by DATABASE_URL or --database-url, as a URL or as
key=value pairs. ?search_path=limits at the end of a URL takes the tables from
schema limits. A password in DATABASE_URL stays out of the process list.

Without a database of your own, --embedded runs the newest PostgreSQL server
installed on this machine (PGBIN names another) for as long as a command uses
it, with the tables in place. What is counted stays, in your data directory or
in --data-dir; commands at the same time share the server. For root, which
PostgreSQL refuses, it runs as user postgres or nobody.

Exit codes: 0 allowed or done, 1 denied or no such row, 2 wrong usage, 3 database
error; 130 after Ctrl-C. Results go to stdout, everything else to stderr.`,
		Example: `  export DATABASE_URL=postgres://app@localhost:5432/shop
  pglimit migrate up
  pglimit allow --limit 10 --period 1m alice && echo go on
  pglimit allow --embedded --limit 10 --period 1m alice`,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	flags := root.PersistentFlags()
	a.db.Register(flags)
	a.out.Register(flags)
	root.AddCommand( // one file per subcommand
		newMigrate(a),
		newAllow(a), newCheck(a), newFill(a), newRefund(a), newWait(a),
		newReserve(a), newSettle(a), newCancel(a), newStatement(a),
		newReset(a), newBlock(a), newUnblock(a),
		newJanitor(a), newReplay(a), newProve(a), newDemo(a), newPlayground(a),
		newVersion(a), connect.NewKeepEmbedded(),
	)
	return root, a
}
