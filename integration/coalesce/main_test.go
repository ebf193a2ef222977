// Package coalesce tests requests that share statements, and rows that other transactions
// have locked, over a real PostgreSQL server.
package coalesce

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
