// Package servers starts the PostgreSQL and the Redis servers for the benchmark. Both
// belong to this program, listen on 127.0.0.1 with a random password, and end with it.
package servers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/bench/processor"
	"github.com/pglimit/pglimit/internal/localpg"
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

// Postgres is a running PostgreSQL with the benchmark's pool.
type Postgres struct {
	Pool *pgxpool.Pool
	// Processor is the clock of the server's processes.
	Processor processor.Clock
	server    *localpg.Server
}

// StartPostgres starts a new, empty server and opens the pool. Close ends both. Like Redis,
// the server listens on TCP, so that both pay for the same way.
func StartPostgres(ctx context.Context) (_ *Postgres, err error) {
	server, err := localpg.Start(ctx, localpg.Options{Settings: postgresSettings, TCP: true})
	if err != nil {
		return nil, err
	}
	p := &Postgres{server: server}
	defer func() {
		if err != nil {
			_ = p.Close() // the first error is reported
		}
	}()
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = PoolSize, PoolSize
	// SetCommit holds for a session, so sessions must outlive a run.
	config.MaxConnLifetime, config.MaxConnIdleTime = 24*time.Hour, 24*time.Hour
	if p.Pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	p.Processor, err = processorOf(ctx, p.Pool)
	return p, err
}

// processorOf returns the clock of a server's process and all that it has started: the
// parent of a connection's process.
func processorOf(ctx context.Context, pool *pgxpool.Pool) (clock processor.Clock, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		postmaster, err := processor.Parent(int(c.Conn().PgConn().PID()))
		if errors.Is(err, errors.ErrUnsupported) {
			err = nil // and the clock says so
		}
		clock = processor.Tree(postmaster)
		return err
	})
	return clock, err
}

// SetCommit sets synchronous_commit in every session of the pool, which must be idle.
func (p *Postgres) SetCommit(ctx context.Context, value string) error {
	var held []*pgxpool.Conn
	defer func() {
		for _, c := range held {
			c.Release()
		}
	}()
	for range PoolSize {
		c, err := p.Pool.Acquire(ctx)
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

// Version returns the server's version, such as "15.18".
func (p *Postgres) Version() string { return p.server.Version() }

// Settings returns the settings as "name = value" joined by commas.
func (p *Postgres) Settings() string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(postgresSettings)) {
		list = append(list, fmt.Sprintf("%s = %s", name, postgresSettings[name]))
	}
	return strings.Join(list, ", ")
}

// Close closes the pool and stops the server.
func (p *Postgres) Close() error {
	if p.Pool != nil {
		p.Pool.Close()
	}
	return p.server.Close()
}
