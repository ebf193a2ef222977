// Package crash tests servers that stop, hang or are killed, over a real PostgreSQL server.
package crash

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 3) }
