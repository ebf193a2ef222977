// Package janitor tests the janitor over a real PostgreSQL server.
package janitor

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
