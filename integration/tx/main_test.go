// Package tx tests decisions in the caller's transaction over a real PostgreSQL server.
package tx

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
