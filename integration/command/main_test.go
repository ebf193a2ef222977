// Package command tests pglimit, the command, over a real PostgreSQL server.
package command

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 2) }
