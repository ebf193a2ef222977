// Package httplimit tests package httplimit over a real PostgreSQL server.
package httplimit

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
