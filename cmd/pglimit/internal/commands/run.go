// Package commands is the command line of pglimit. It has the root command; each
// subcommand or group of subcommands has a package below it.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/connect"
)

// Run runs the command line args, without the program's name, and returns the
// exit code. It prints an error as one line on stderr.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var db connect.Database
	root := newRoot(&db)
	root.SetArgs(args)
	root.SetIn(cli.Interruptible(ctx, stdin))
	root.SetOut(stdout)
	root.SetErr(stderr)
	addCompletion(root)
	cmd, err := root.ExecuteContextC(ctx)
	err = errors.Join(err, db.Leave())
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

// oneLine joins the lines of an error, such as one from connecting to several
// hosts.
func oneLine(message string) string {
	var lines []string
	for line := range strings.Lines(message) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return strings.ReplaceAll(strings.Join(lines, "; "), ":; ", ": ")
}
