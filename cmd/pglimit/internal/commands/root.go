// Package commands is the command line of pglimit: the root command, and a file or a few
// for each subcommand.
package commands

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
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
~/.pgpass), in a service file (service=NAME, PGSERVICEFILE), or all of the URL in
the file that DATABASE_URL_FILE names.

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
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	out := &cli.Output{}
	db.Register(root.PersistentFlags())
	out.Register(root.PersistentFlags())
	addGroup(root, "Requests:", newAllow(db, out), newAllowUpTo(db, out), newAllowAll(db, out), newAllowAny(db, out), newCheck(db, out), newWait(db, out),
		newCharge(db, out), newGrant(db, out), newRefund(db, out), newReserve(db, out), newReserveUpTo(db, out), newReserveAll(db, out), newSettle(db, out), newSettleAll(db, out), newCancel(db, out), newCancelAll(db, out),
		newAttempt(db, out), newSucceeded(db, out), newFailed(db, out), newAcquire(db, out), newRenew(db, out), newRelease(db, out), newUsage(db, out))
	addGroup(root, "Keys:", newTop(db, out), newWhy(db, out), newFind(db, out), newBlock(db, out), newUnblock(db, out), newReset(db, out), newForget(db, out))
	addGroup(root, "Policies:", newPolicy(db, out), newOverride(db, out), newPrograms(db, out), newEvents(db, out), newLedger(db, out), newReplay(db, out))
	addGroup(root, "Database:", newMigrate(db, out), newJanitor(db, out), newDoctor(db, out), newServe(db, out), newRatelimit(db), newDashboard(db, out))
	addGroup(root, "Try:", newDemo(db, out), newPlayground(db, out), newProve(db, out))
	addGroup(root, "This program:", newVersion(db, out))
	root.SetHelpCommandGroupID("This program:")
	root.SetCompletionCommandGroupID("This program:")
	root.AddCommand(connect.NewKeepEmbedded())
	return root
}

// addGroup adds commands under a title in the help.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
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

// Tree returns the command with all subcommands, for programs that write its documentation.
func Tree() *cobra.Command {
	root := newRoot(&connect.Database{})
	addCompletion(root)
	return root
}

// Main runs the command line of the process, and ends the process with its exit code.
func Main() {
	ctx, stop := cli.WithSignals(context.Background())
	code := Run(ctx, arguments(os.Args), os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
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
	nameArguments(root)
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
