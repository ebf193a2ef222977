// Package decide tests single decisions over a real PostgreSQL server.
package decide

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 3) }
