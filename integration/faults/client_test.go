package faults

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// driver is how a client reaches the database.
type driver string

const (
	overPGX   driver = "pgx"
	overSQL   driver = "database/sql, pgx"
	overLibPQ driver = "database/sql, lib/pq"
)

const connections = 8 // of each client

// client is a limiter with a separate pool, which the transactions of its callers use
// too.
type client struct {
	over  driver
	l     *limiter.Limiter
	begin func(context.Context) (*transaction, error)
	// hold takes a connection of the pool.
	hold func(context.Context) (release func(), err error)
	// drop uses each idle connection once: a pool counts one whose session was ended until then.
	drop func(context.Context)
	// count returns the pool's connections, and those in use.
	count func() (open, used int)
	close func() error
}

// transaction is one of the application, over either driver.
type transaction struct {
	*limiter.Tx
	exec     func(ctx context.Context, sql string, args ...any) (rows int64, err error)
	commit   func(context.Context) error
	rollback func(context.Context) error
}

// newClient opens a pool for the database at address. Its connections are those of d.
func newClient(t *testing.T, over driver, address string, d dialer) *client {
	t.Helper()
	config := &limiter.Config{Logger: slog.New(slog.DiscardHandler)} // else the defaults
	if over == overPGX {
		settings := must.OK(pgxpool.ParseConfig(address))(t)
		settings.MaxConns = connections
		settings.ConnConfig.DialFunc = d.Dial
		pool := must.OK(pgxpool.NewWithConfig(context.Background(), settings))(t)
		l := must.OK(limiter.New(pool, config))(t)
		return overPool(pool, l)
	}
	db := openSQL(t, over, address, d)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	l := must.OK(limiter.NewSQL(db, config))(t)
	return overDB(over, db, l)
}

func overPool(pool *pgxpool.Pool, l *limiter.Limiter) *client {
	return &client{
		over: overPGX, l: l,
		begin: func(ctx context.Context) (*transaction, error) {
			tx, err := pool.Begin(ctx)
			if err != nil {
				return nil, err
			}
			return &transaction{
				Tx: l.InTx(tx),
				exec: func(ctx context.Context, sql string, args ...any) (int64, error) {
					done, err := tx.Exec(ctx, sql, args...)
					return done.RowsAffected(), err
				},
				commit: tx.Commit, rollback: tx.Rollback,
			}, nil
		},
		hold: func(ctx context.Context) (func(), error) {
			c, err := pool.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return c.Release, nil
		},
		drop: func(ctx context.Context) {
			for _, c := range pool.AcquireAllIdle(ctx) {
				_ = c.Ping(ctx)
				c.Release()
			}
		},
		count: func() (open, used int) {
			stat := pool.Stat()
			return int(stat.TotalConns()), int(stat.AcquiredConns())
		},
		close: func() error {
			err := l.Close()
			pool.Close()
			return err
		},
	}
}

func overDB(over driver, db *sql.DB, l *limiter.Limiter) *client {
	return &client{
		over: over, l: l,
		begin: func(ctx context.Context) (*transaction, error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return nil, err
			}
			return &transaction{
				Tx: l.InSQLTx(tx),
				exec: func(ctx context.Context, sql string, args ...any) (int64, error) {
					done, err := tx.ExecContext(ctx, sql, args...)
					if err != nil {
						return 0, err
					}
					return done.RowsAffected()
				},
				commit:   func(context.Context) error { return tx.Commit() },
				rollback: func(context.Context) error { return tx.Rollback() },
			}, nil
		},
		hold: func(ctx context.Context) (func(), error) {
			c, err := db.Conn(ctx)
			if err != nil {
				return nil, err
			}
			return func() { _ = c.Close() }, nil
		},
		drop: func(ctx context.Context) {
			for range db.Stats().Idle {
				if c, err := db.Conn(ctx); err == nil {
					defer c.Close()
					_ = c.PingContext(ctx)
				}
			}
		},
		count: func() (open, used int) {
			stat := db.Stats()
			return stat.OpenConnections, stat.InUse
		},
		close: func() error { return errors.Join(l.Close(), db.Close()) },
	}
}

func openSQL(t *testing.T, over driver, address string, d dialer) *sql.DB {
	t.Helper()
	if over == overSQL {
		settings := must.OK(pgx.ParseConfig(address))(t)
		settings.DialFunc = d.Dial
		return stdlib.OpenDB(*settings)
	}
	u := must.OK(url.Parse(testworld.WithoutTLS(t, address)))(t)
	query := u.Query()
	query.Del("require_auth") // lib/pq refuses it
	u.RawQuery = query.Encode()
	connector := must.OK(pq.NewConnector(u.String()))(t)
	connector.Dialer(pqDialer{d})
	return sql.OpenDB(connector)
}

// pqDialer is a dialer for lib/pq.
type pqDialer struct{ dialer }

func (d pqDialer) Dial(network, address string) (net.Conn, error) {
	return d.dialer.Dial(context.Background(), network, address)
}

func (d pqDialer) DialTimeout(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return d.dialer.Dial(ctx, network, address)
}

func (d pqDialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d.dialer.Dial(ctx, network, address)
}
