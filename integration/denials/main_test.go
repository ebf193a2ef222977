// Package denials tests the cache of denials, their log, shadow policies and Observe over a real
// PostgreSQL server.
package denials

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
