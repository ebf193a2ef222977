// Package wait tests Wait and WaitAll over a real PostgreSQL server.
package wait

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
