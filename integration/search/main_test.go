// Package search looks for over-admission by random histories over a real PostgreSQL
// server.
package search

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 2) }
