// Package servers starts a PostgreSQL server for the benchmark and the soak. It belongs to
// this program and listens on 127.0.0.1 with a random password.
package servers

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/internal/localpg"
	"github.com/pglimit/pglimit/migrations"
)

// PoolSize is the number of connections of the pool that all contenders on PostgreSQL
// share.
const PoolSize = 16

// The four settings that matter, with the values of a server that keeps what it
// acknowledged. All others are PostgreSQL's defaults.
var postgresSettings = map[string]string{
	"shared_buffers":     "512MB",
	"fsync":              "on",
	"synchronous_commit": "on",
	"full_page_writes":   "on",
}

// Postgres is a running PostgreSQL.
type Postgres struct {
	*localpg.Server
	// Postmaster is the server's first process; 0 if the system does not report it.
	Postmaster int
	pools      []*pgxpool.Pool
}

// StartPostgres starts a new, empty server, with some further settings. Close ends it. Like
// Redis, the server listens on TCP, so that both pay for the same way.
func StartPostgres(ctx context.Context, further map[string]string) (_ *Postgres, err error) {
	settings := maps.Clone(postgresSettings)
	maps.Copy(settings, further)
	server, err := localpg.Start(ctx, localpg.Options{Settings: settings, TCP: true})
	if err != nil {
		return nil, err
	}
	return &Postgres{Server: server}, nil
}

// Connect opens a pool. It opens all connections at the start, as set changes their
// settings. They stay open until the pool or the server is closed.
func (p *Postgres) Connect(ctx context.Context, connections int32, set func(*pgx.ConnConfig)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.URL())
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = connections, connections
	config.MaxConnLifetime, config.MaxConnIdleTime = 24*time.Hour, 24*time.Hour
	set(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	p.pools = append(p.pools, pool)
	return pool, pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		p.Postmaster = proc.Parent(int(c.Conn().PgConn().PID()))
		return nil
	})
}

// SetCommit sets synchronous_commit in every session of a pool, which must be idle.
func SetCommit(ctx context.Context, pool *pgxpool.Pool, value string) error {
	var held []*pgxpool.Conn
	defer func() {
		for _, c := range held {
			c.Release()
		}
	}()
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		held = append(held, c)
		if _, err := c.Exec(ctx, "SELECT set_config('synchronous_commit', $1, false)", value); err != nil {
			return err
		}
	}
	return nil
}

// NewDatabase creates a database with pglimit's tables, and opens a pool of connections to it.
func (p *Postgres) NewDatabase(ctx context.Context, name string, connections int32) (*pgxpool.Pool, error) {
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	pool, err := p.Connect(ctx, connections, func(c *pgx.ConnConfig) { c.Database = name })
	if err != nil {
		return nil, err
	}
	return pool, migrations.Up(ctx, pool)
}

// Table is the server's figures of a table. It counts updates since the table was created.
type Table struct {
	Name                  string
	Bytes, Indexes        int64
	Dead                  int64 // rows, by the server's estimate
	Updates, HOT, Vacuums int64
}

// ReadTable reads a table's figures. Sessions report their updates late.
func ReadTable(ctx context.Context, pool *pgxpool.Pool, name string) (Table, error) {
	t := Table{Name: name}
	err := pool.QueryRow(ctx, `SELECT pg_table_size(relid), pg_indexes_size(relid), n_dead_tup, n_tup_upd, n_tup_hot_upd, autovacuum_count
		FROM pg_stat_user_tables WHERE relid = $1::regclass`, name).Scan(&t.Bytes, &t.Indexes, &t.Dead, &t.Updates, &t.HOT, &t.Vacuums)
	return t, err
}

// Settings returns the settings, such as "fsync:on full_page_writes:on".
func Settings() string { return strings.Trim(fmt.Sprint(postgresSettings), "map[]") }

// Close closes the pools and stops the server.
func (p *Postgres) Close() error {
	for _, pool := range p.pools {
		pool.Close()
	}
	return p.Server.Close()
}
