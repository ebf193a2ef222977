// Package reserve tests reservations and idempotency keys over a real PostgreSQL server.
package reserve

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
