//go:build unix

// Package history checks that the answers of several processes can be put in one order in
// which each follows from those before it: that the limiter is linearizable.
package history

import (
	"fmt"
	"os"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(childKey); file != "" {
		if err := beChild(file, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "history:", err)
			os.Exit(1)
		}
		return
	}
	bed.Main(m, 2)
}
