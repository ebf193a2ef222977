// Command pglimit creates, uses and maintains pglimit's rate limits in PostgreSQL.
// `pglimit help` lists its subcommands.
package main

import (
	_ "time/tzdata" // for --time-zone on systems without time zone data

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
)

func main() { commands.Main() }
