// Package stranger tests schemas where other roles may create functions and operators,
// over a real PostgreSQL server.
package stranger

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
