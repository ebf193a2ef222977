// Package tx tests decisions in the caller's transaction over a real PostgreSQL server.
package tx

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
