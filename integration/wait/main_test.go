// Package wait tests Wait and WaitAll over a real PostgreSQL server.
package wait

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
