// Package embedded tests pglimit --embedded over PostgreSQL servers of this machine.
package embedded

import (
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) {
	bed.BeCommand(commands.Main)
	bed.Main(m, 2)
}
