// Package reserve tests reservations and idempotency keys over a real PostgreSQL server.
package reserve

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
