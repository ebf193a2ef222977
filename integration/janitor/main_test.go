// Package janitor tests the janitor over a real PostgreSQL server.
package janitor

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
