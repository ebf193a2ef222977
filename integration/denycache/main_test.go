// Package denycache tests the cache of denials over a real PostgreSQL server.
package denycache

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
