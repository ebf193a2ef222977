// Package commands is the command line of pglimit. It has the root command; each
// subcommand or group of subcommands has a package below it.
package commands

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

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
