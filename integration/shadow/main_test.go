// Package shadow tests shadow policies, Observe and the log of denials over a real
// PostgreSQL server.
package shadow

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
