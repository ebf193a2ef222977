// Package misconfigured tests servers that answer but refuse every decision: missing
// rights, a wrong password, a read-only server, lost statements.
package misconfigured

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 3) }

var failsOpen = bed.FailsOpen
