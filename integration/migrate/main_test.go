// Package migrate tests the migrations over a real PostgreSQL server.
package migrate

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
