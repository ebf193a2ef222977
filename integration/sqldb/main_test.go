// Package sqldb tests limiters over database/sql over a real PostgreSQL server.
package sqldb

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 6) }
