//go:build unix

// Package history checks that the answers of several processes can be put in one order in
// which each follows from those before it: that the limiter is linearizable. A process is a
// Limiter with a pool and a clock of its own, which shares nothing with the others but the
// database.
package history

import (
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) { bed.Main(m, 2) }
