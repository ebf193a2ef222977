// Package search looks for over-admission by random histories over a real PostgreSQL
// server.
package search

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 2) }
