// Package router tests limiters behind a router of shards, over two databases.
package router

import (
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }
