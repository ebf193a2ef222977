// Package denials tests the cache of denials, their log, shadow policies and Observe over a real
// PostgreSQL server.
package denials

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
