// Package allowall tests AllowAll over a real PostgreSQL server.
package allowall

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
