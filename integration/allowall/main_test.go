// Package allowall tests AllowAll over a real PostgreSQL server.
package allowall

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
