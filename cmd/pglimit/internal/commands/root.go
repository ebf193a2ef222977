// Package commands is the command line of pglimit. It has the root command; each
// subcommand or group of subcommands has a package below it.
package commands

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/decide"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/demo"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/doctor"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/janitor"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/migrate"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/override"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/policy"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/prove"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/replay"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/serve"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands/version"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

// newRoot returns the command pglimit with all subcommands. Its global flags set
// db and the output that the subcommands share.
func newRoot(db *connect.Database) *cobra.Command {
	root := &cobra.Command{
		Use:   "pglimit",
		Short: "Rate limits in PostgreSQL",
		Long: `Rate limits in PostgreSQL: create the tables, decide requests, and maintain them.

DATABASE_URL or --database-url names the database, as a URL or as key=value
pairs. ?search_path=limits at the end of a URL selects the tables in schema
limits. The process list shows --database-url to all users of the machine, so
keep a password in DATABASE_URL, in the password file (PGPASSFILE, default
~/.pgpass) or in a service file (service=NAME, PGSERVICEFILE).

--embedded runs a PostgreSQL server while a command uses it, with the tables in
place: the newest one installed on this machine, or the one in PGBIN. The data
stay in your data directory, or in --data-dir. Commands that run at the same time
share the server. For root, the server runs as user postgres or nobody, because
PostgreSQL refuses to run as root.

Exit codes: 0 allowed or done, 1 denied or no such row, 2 wrong usage, 3 database
error, 130 ended by Ctrl-C. Results go to stdout, everything else to stderr.

With --json, results and errors are JSON. An error is one line on stderr, the
last one:
{"error": "...", "code": "usage", "exit_code": 2, "next_step": "..."}. The code is
usage, database or interrupted. next_step may be missing. A line of input that is
skipped has its number in "line", and no exit_code.`,
		Example: `  export DATABASE_URL=postgres://app@localhost:5432/shop
  pglimit migrate up
  pglimit allow --limit 10 --period 1m alice && echo allowed
  pglimit allow --embedded --limit 10 --period 1m alice`,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	out := &cli.Output{}
	db.Register(root.PersistentFlags())
	out.Register(root.PersistentFlags())
	root.AddCommand(
		decide.NewAllow(db, out), decide.NewCheck(db, out), decide.NewWait(db, out),
		decide.NewCharge(db, out), decide.NewRefund(db, out),
		decide.NewReserve(db, out), decide.NewSettle(db, out), decide.NewCancel(db, out),
		decide.NewUsage(db, out),
		policy.New(db, out), override.New(db, out),
		inspect.NewTop(db, out), inspect.NewFind(db, out),
		inspect.NewBlock(db, out), inspect.NewUnblock(db, out), inspect.NewReset(db, out), inspect.NewForget(db, out),
		migrate.New(db, out), janitor.New(db, out), doctor.New(db, out),
		replay.New(db, out), prove.New(db, out), demo.New(db, out), serve.NewPlayground(db, out), serve.NewDashboard(db, out),
		version.New(db, out), connect.NewKeepEmbedded(),
	)
	return root
}

// completeNoFiles makes shells complete no files for cmd and the commands below it, unless
// their arguments are files or folders.
func completeNoFiles(cmd *cobra.Command) {
	if !cmd.HasSubCommands() && !strings.Contains(cmd.Use, "FILE") && !strings.Contains(cmd.Use, "DIR") {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		completeNoFiles(sub)
	}
}

// addCompletion adds cobra's completion command, with examples. Call it after
// root.SetOut: the command writes to the stdout that root has then.
func addCompletion(root *cobra.Command) {
	completeNoFiles(root)
	root.InitDefaultCompletionCmd()
	examples := map[string]string{
		"completion": "  source <(pglimit completion bash)",
		"bash":       "  source <(pglimit completion bash)",
		"zsh":        "  source <(pglimit completion zsh)",
		"fish":       "  pglimit completion fish | source",
		"powershell": "  pglimit completion powershell | Out-String | Invoke-Expression",
	}
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		c.Example = examples[c.Name()]
		for _, shell := range c.Commands() {
			shell.Example = examples[shell.Name()]
		}
	}
}

// Run runs the command line args, without the program's name, and returns the
// exit code. It prints an error as one line on stderr: with --json as JSON.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var db connect.Database
	root := newRoot(&db)
	root.SetArgs(args)
	root.SetIn(cli.Interruptible(ctx, stdin))
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	replaceHelp(root)
	nameMistypes(root)
	unparsed := false
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		unparsed = true
		return flagError(cmd, err)
	})
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, db.Leave())
	code, silent := cli.ExitCode(ctx, err)
	if silent {
		return code
	}
	asJSON, _ := root.PersistentFlags().GetBool("json")
	failure := cli.NewFailure(cmd, err, code)
	failure.Message = db.Redact(failure.Message, args)
	failure.Write(stderr, asJSON || unparsed && cli.WantsJSON(args))
	return code
}
