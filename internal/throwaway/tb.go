package throwaway

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

const databaseTimeout = time.Minute

// TB is what New needs of a testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Failed() bool
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// New creates a copy of the template for one test and returns its URL. The
// copy is dropped when the test ends; but if the test failed on a server that
// PGLIMIT_TEST_DATABASE_URL names, it stays for a look at it, and the log
// tells its name.
func (t *Template) New(tb TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	t.mu.Lock()
	address, drop, err := t.server.create(ctx, t.label, t.database)
	t.mu.Unlock()
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(func() {
		if tb.Failed() && t.server.kind == kindURL {
			if config, err := pgx.ParseConfig(address); err == nil {
				tb.Logf("the failed test's database is kept: %s at %s:%d", config.Database, config.Host, config.Port)
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
		defer cancel()
		if err := drop(ctx); err != nil {
			tb.Logf("%v", err) // a test may have ended the server
		}
	})
	return address
}
