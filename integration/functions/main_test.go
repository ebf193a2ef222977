// Package functions tests the SQL functions over a real PostgreSQL server.
package functions

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
