// Package misconfigured tests servers that answer but refuse every decision: missing
// rights, a wrong password, a read-only server, lost statements.
package misconfigured

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 3) }

var failsOpen = testworld.FailsOpen
