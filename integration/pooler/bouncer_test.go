// Package pooler tests limits through PgBouncer in transaction mode, which separates prepared
// statements from their connections.
package pooler

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

func TestMain(m *testing.M) { testworld.Main(m, 3) }

// startPgBouncer starts a PgBouncer with connections to the database at address,
// which keeps no prepared statements. It returns the address for clients.
func startPgBouncer(t *testing.T, address string, connections int) string {
	t.Helper()
	return startPgBouncerOf(t, address, testworld.BouncerConfig{Connections: connections})
}

// startPgBouncerOf starts the PgBouncer of a config without a server and databases.
func startPgBouncerOf(t *testing.T, address string, c testworld.BouncerConfig) string {
	t.Helper()
	server := must.OK(pgconn.ParseConfig(address))(t)
	c.Server, c.Databases = address, []string{server.Database, nowhere}
	b := must.OK(testworld.StartBouncer(t.Context(), c))(t)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b.URL(server.Database)
}

// nowhere is a database that PgBouncer has and the server has not.
const nowhere = "nowhere"
