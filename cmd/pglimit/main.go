// Command pglimit creates, uses and maintains pglimit's rate limits in PostgreSQL.
// `pglimit help` lists its subcommands.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for --time-zone on systems without time zone data

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
)

func main() {
	ctx, stop := cli.WithSignals(context.Background())
	code := commands.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
