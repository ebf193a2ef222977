package main

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/memory"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// settings are the server's: a size other than the default, and two defaults that the
// figures rest on.
var settings = map[string]string{"shared_buffers": "512MB", "fsync": "on", "full_page_writes": "on"}

// told are further settings for the report.
var told = []string{"synchronous_commit", "wal_writer_delay", "max_wal_size", "checkpoint_timeout", "autovacuum"}

// callers is the number of concurrent callers, except where it is one, and of their pool's
// connections.
const callers = 16

// server is the PostgreSQL that is measured.
type server struct {
	*localpg.Server
	postmaster int // its process; 0 if the system does not report it
}

func startServer(ctx context.Context) (*server, error) {
	s, err := localpg.Start(ctx, localpg.Options{Settings: settings, TCP: true})
	if err != nil {
		return nil, err
	}
	return &server{Server: s}, nil
}

// describe reads the server's version and settings, and finds its process.
func (s *server) describe(ctx context.Context) (environment, error) {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return environment{}, err
	}
	defer conn.Close(ctx)
	s.postmaster = memory.Parent(int(conn.PgConn().PID()))
	e := environment{
		When: time.Now().UTC(), Go: runtime.Version(), PostgreSQL: s.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == "github.com/jackc/pgx/v5" {
				e.Pgx = m.Version
			}
		}
	}
	for _, name := range append(slices.Sorted(maps.Keys(settings)), told...) {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&value); err != nil {
			return environment{}, err
		}
		if want, ok := settings[name]; ok && value != want {
			return environment{}, fmt.Errorf("%s is %s on the server, not %s", name, value, want)
		}
		e.Settings = append(e.Settings, setting{name, value})
	}
	return e, nil
}

// database is one of the server's databases, with pglimit's tables.
type database struct {
	server *server
	name   string
	conn   *pgx.Conn // for work that is not measured
}

// createDatabase creates a database, which the caller drops.
func (s *server) createDatabase(ctx context.Context, name string) (*database, error) {
	if err := s.exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	d := &database{server: s, name: name}
	pool, err := d.pool(ctx, 2)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := migrations.Up(ctx, pool); err != nil {
		return nil, err
	}
	d.conn, err = pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	return d, err
}

// drop removes the database and its disk space.
func (d *database) drop(ctx context.Context) error {
	if err := d.conn.Close(ctx); err != nil {
		return err
	}
	if err := d.settle(ctx, 0); err != nil {
		return err
	}
	return d.server.exec(ctx, "DROP DATABASE "+d.name)
}

// exec runs a statement that needs a separate connection.
func (s *server) exec(ctx context.Context, statement string) error {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement)
	return err
}

// pool opens a pool with that many connections, all at once.
func (d *database) pool(ctx context.Context, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(d.server.URL())
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Database = d.name
	config.MaxConns = connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := connect(ctx, pool, connections); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// connect opens that many connections of a pool, and returns them to it.
func connect(ctx context.Context, pool *pgxpool.Pool, connections int32) error {
	for range connections {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release() // not before all are open
	}
	return nil
}

// decisionTimeout is far above the time of a decision, so that one slow moment of the disk
// shows in the figures and ends no decision.
const decisionTimeout = 30 * time.Second

// newLimiter creates a limiter with its defaults, except that the database makes each
// denial.
func newLimiter(pool *pgxpool.Pool) (*limiter.Limiter, error) {
	return limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: decisionTimeout})
}

// settle waits until at most left sessions are on the database. A session reports its
// counters when it ends.
func (d *database) settle(ctx context.Context, left int) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.server.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		var sessions int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = $1 AND backend_type = 'client backend'`, d.name).Scan(&sessions)
		if err != nil {
			return fmt.Errorf("wait for the sessions on %s to end: %w", d.name, err)
		}
		if sessions <= left {
			// Before PostgreSQL 15 the counters pass through a separate process.
			_, err := conn.Exec(ctx, "SELECT pg_sleep(1) WHERE current_setting('server_version_num')::int < 150000")
			return err
		}
		if _, err := conn.Exec(ctx, "SELECT pg_sleep(0.02)"); err != nil {
			return fmt.Errorf("%d sessions on %s have not ended within %v: %w", sessions-left, d.name, patience, err)
		}
	}
}
