// Package spend tests an application that spends, while clients and servers are
// killed, over a real PostgreSQL server.
package spend

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 2) }
