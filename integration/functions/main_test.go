// Package functions tests the SQL functions over a real PostgreSQL server.
package functions

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
