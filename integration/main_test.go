// Package integration tests pglimit over a real PostgreSQL server. Each test
// has databases of its own, so all run in parallel.
package integration

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m) }
