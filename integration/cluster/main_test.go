// Package cluster tests what only a Citus cluster has, on one of this machine's programs.
package cluster

import (
	"os"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/pglimittest"
)

func TestMain(m *testing.M) {
	const backend, citus = "PGLIMIT_TEST_BACKEND", "citus"
	if os.Getenv(backend) != citus { // then a server that is shared is no cluster
		os.Unsetenv(pglimittest.SharedURL)
		os.Setenv(backend, citus)
	}
	testworld.Main(m, 2)
}
