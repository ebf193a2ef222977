// Package migrate tests the migrations over a real PostgreSQL server.
package migrate

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
