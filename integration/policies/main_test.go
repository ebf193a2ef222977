// Package policies tests policies and overrides that the database holds.
package policies

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 8) }
