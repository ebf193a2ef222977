// Package crash tests servers that stop, hang or are killed, over a real PostgreSQL server.
package crash

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 3) }
