// Package misconfigured tests servers that answer but refuse every decision: missing
// rights, a wrong password, a read-only server, a pooler that separates prepared
// statements from their connections.
package misconfigured

import (
	"log"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/pglimittest"
)

func TestMain(m *testing.M) { bed.Main(m, 3) }

// overTCP starts a server with a host and a port, which checks passwords.
func overTCP(t *testing.T) *pglimittest.Server {
	t.Helper()
	s, err := pglimittest.StartOwn(t.Context(), log.Printf, pglimittest.OverTCP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
