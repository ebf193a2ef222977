// Package policies tests policies and overrides that the database holds.
package policies

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 8) }
