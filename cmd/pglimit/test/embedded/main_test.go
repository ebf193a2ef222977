// Package embedded tests pglimit --embedded over PostgreSQL servers of this machine.
package embedded

import (
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 2)
}
