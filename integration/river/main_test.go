// Package river tests riverlimit's middleware with River over a real PostgreSQL server.
package river

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
