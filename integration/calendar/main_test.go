// Package calendar tests windows of the calendar over a real PostgreSQL server.
package calendar

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 4) }
