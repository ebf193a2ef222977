package misconfigured

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/pglimittest"
)

const connections = 4

// becomesReadOnly makes a session read-only, as if its server had been demoted.
const becomesReadOnly = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"

// expectDecisions expects concurrent decisions of several verbs on the database.
func expectDecisions(t *testing.T, l *limiter.Limiter) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 2 * connections {
		all.Go(func() {
			key := fmt.Sprint("k", i)
			if r, err := l.Allow(t.Context(), failsOpen, key); err != nil || r.Source != limiter.SourceDatabase || !testworld.Near(r.Level, 1) {
				t.Errorf("Allow: %+v, %v", r, err)
			}
			if both, err := l.AllowAll(t.Context(), failsOpen.Request(key, 1), failsOpen.Request("x"+key, 1)); err != nil || !both.Allowed || !testworld.Near(both.PerRequest[0].Level, 2) {
				t.Errorf("AllowAll: %+v, %v", both, err)
			}
		})
	}
	all.Wait()
}

// TestReadOnlyConnections: connections that became read-only are given up, and the
// decision is made on a new one.
func TestReadOnlyConnections(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	config := &limiter.Config{Logger: slog.New(slog.DiscardHandler), DisableBatching: true}
	t.Run("pool", func(t *testing.T) {
		pool := testworld.Connect(t, address, func(c *pgxpool.Config) { c.MaxConns = connections })
		var conns []*pgxpool.Conn
		for range connections {
			c := must.OK(pool.Acquire(t.Context()))(t)
			must.OK(c.Exec(t.Context(), becomesReadOnly))(t)
			conns = append(conns, c)
		}
		for _, c := range conns {
			c.Release()
		}
		l := testworld.NewLimiter(t, pool, config)
		expectDecisions(t, l)
		testworld.Must(t)(l.Allow(t.Context(), failsOpen, "k0"))
	})
	for _, driver := range testworld.SQLDrivers {
		t.Run(driver, func(t *testing.T) {
			db := testworld.ConnectSQL(t, driver, address)
			db.SetMaxOpenConns(connections)
			var conns []*sql.Conn
			for range connections {
				c := must.OK(db.Conn(t.Context()))(t)
				must.OK(c.ExecContext(t.Context(), becomesReadOnly))(t)
				conns = append(conns, c)
			}
			for _, c := range conns {
				must.Succeed(t, c.Close())
			}
			for _, key := range []string{"k", "xk"} {
				testworld.Exec(t, testworld.Connect(t, address), `DELETE FROM pglimit_token_bucket WHERE key LIKE $1`, key+"%")
			}
			expectDecisions(t, testworld.NewSQL(t, db, config))
		})
	}
}

// TestReadOnlyFailover: two servers change roles, and the URL names both with
// target_session_attrs=read-write. Decisions continue on the new primary.
func TestReadOnlyFailover(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var servers []*pglimittest.Server
	var hosts []string
	for range 2 {
		s := testworld.OwnServer(t, pglimittest.OverTCP)
		pool := testworld.Connect(t, s.URL())
		must.Succeed(t, migrations.Up(ctx, pool))
		testworld.Exec(t, pool, `CREATE ROLE app LOGIN PASSWORD 'secret'`)
		testworld.Exec(t, pool, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO app`)
		u := must.OK(url.Parse(s.URL()))(t)
		servers, hosts = append(servers, s), append(hosts, u.Host)
	}
	become := func(s *pglimittest.Server, readOnly string) {
		t.Helper()
		pool := testworld.Connect(t, s.URL())
		testworld.Exec(t, pool, `ALTER SYSTEM SET default_transaction_read_only = `+readOnly)
		testworld.Exec(t, pool, `SELECT pg_reload_conf()`)
		testworld.Eventually(t, "new sessions have the setting", func(ctx context.Context) (bool, error) {
			var now string
			err := testworld.ConnectOnce(t, s.URL()).QueryRow(ctx, `SHOW default_transaction_read_only`).Scan(&now)
			return now == readOnly, err
		})
	}
	become(servers[1], "on")
	pool := testworld.Connect(t, "postgres://app:secret@"+strings.Join(hosts, ",")+"/postgres?sslmode=disable&target_session_attrs=read-write")
	l := testworld.NewLimiter(t, pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	if r := testworld.Must(t)(l.AllowN(ctx, failsOpen, "k", 7)); !testworld.Near(r.Level, 7) {
		t.Errorf("%+v", r)
	}
	become(servers[0], "on")
	become(servers[1], "off")
	// Each session reads the new setting between two statements.
	testworld.Eventually(t, "the new primary decides", func(ctx context.Context) (bool, error) {
		r, err := l.AllowN(ctx, failsOpen, "k", 1)
		if err != nil || r.Source != limiter.SourceDatabase {
			return false, fmt.Errorf("%+v, %w", r, err)
		}
		return testworld.Near(r.Level, 1), nil // the other server has 7 and more
	})
}

// TestReadOnlyServer: a server that stays read-only is not connected to again for each
// request, and refuses each.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	d := testworld.NewDialer(func() string { return address })
	pool := testworld.Connect(t, address, testworld.Setting("default_transaction_read_only", "on"), func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.DialFunc = connections, d.Dial
	})
	l := testworld.NewLimiter(t, pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	start := time.Now()
	const requests = 300
	for range requests {
		if r, err := l.Allow(t.Context(), failsOpen, "k"); !errors.Is(err, limiter.ErrMisconfigured) || r.Allowed {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	// One connection at a time was needed, and all were given up once a second.
	if dialed, most := d.Dials.Load(), 3+int64(time.Since(start)/time.Second); dialed > most {
		t.Errorf("%d connections for %d requests in %v, want at most %d", dialed, requests, time.Since(start), most)
	}
}
