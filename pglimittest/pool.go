package pglimittest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/migrations/citus"
)

// startTimeout bounds the start of the server, which may download an image.
const startTimeout = 10 * time.Minute

// commonServer is a server with a template of migrated databases, which starts when it is
// needed.
type commonServer struct {
	mu       sync.Mutex
	server   *Server
	migrated *Template
	err      error // of the start
}

// common is the server of Pool and URL.
var common commonServer

// Main runs the tests of a package, removes the server that Pool and URL started, and
// exits with the tests' status. Call it in TestMain. Without it a local server ends with
// the process, a container is removed by testcontainers' reaper or by the next run, and a
// server that PGLIMIT_TEST_DATABASE_URL names keeps one database as a template.
func Main(m *testing.M) {
	status := m.Run()
	if err := common.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pglimittest:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// Pool returns a pool of connections to a new database with pglimit's tables. When the
// test ends, the pool is closed and the database dropped. If no server can be started, the
// test fails, and the message has the reason for each way. Pool may be called from several
// tests at once. Each call makes another database.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), URL(t))
	if err != nil {
		t.Fatalf("pglimittest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// URL is Pool for other drivers, such as those of database/sql. It returns the URL of the
// database, whose user may create objects in it. The test closes its connections itself;
// those that are left are ended.
func URL(t testing.TB) string {
	t.Helper()
	migrated, err := common.template()
	if err != nil {
		t.Fatalf("pglimittest: %v", err)
	}
	return migrated.New(t)
}

// template starts the server at its first call.
func (c *commonServer) template() (*Template, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.migrated != nil || c.err != nil {
		return c.migrated, c.err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, "pglimittest: "+format+"\n", args...) }
	if c.server, c.err = Start(ctx, logf); c.err == nil {
		c.migrated, c.err = c.server.Template(ctx, "test", c.migrate)
	}
	return c.migrated, c.err
}

// migrate creates the tables, and distributes them over the workers of a cluster.
func (c *commonServer) migrate(ctx context.Context, pool *pgxpool.Pool) error {
	err := migrations.Up(ctx, pool)
	if err == nil && len(c.server.workers) > 0 {
		err = citus.Distribute(ctx, pool, 0)
	}
	return err
}

// close removes the server if it was started. It does not start again.
func (c *commonServer) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.migrated, c.err = nil, errors.New("the tests are over: Main has removed the server")
	if c.server == nil {
		return nil
	}
	return c.server.Close()
}
