// Package decide tests single decisions over a real PostgreSQL server.
package decide

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 3) }
