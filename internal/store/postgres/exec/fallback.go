package exec

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
)

// stale reports whether a prepared statement does not fit its tables any longer, because
// they were changed.
func stale(err error) bool {
	return sqlState(err) == featureNotSupported && strings.Contains(err.Error(), "cached plan")
}

// Cache is what is known of a driver's cache of prepared statements. It is safe for
// concurrent use.
type Cache struct {
	off  atomic.Bool
	warn func(error)
}

// NewCache returns a Cache in use. When it is turned off, warn is called once, with the
// cause and the next step.
func NewCache(warn func(error)) *Cache { return &Cache{warn: warn} }

// InUse reports whether statements are prepared.
func (c *Cache) InUse() bool { return !c.off.Load() }

func (c *Cache) turnOff(cause error) {
	if c.off.CompareAndSwap(false, true) {
		c.warn(pooler.Explain(cause))
	}
}

// InTx is InTx, but without prepared statements if the cache is off and tx is of pgx. If a
// statement of tx is lost, tx has failed, and the cache is off for later transactions.
func (c *Cache) InTx(tx db.DBTX) Runner {
	if _, ok := tx.(pgx.Tx); !ok {
		return InTx(tx)
	}
	if c.off.Load() {
		tx = uncached{tx}
	}
	return cacheTx{InTx(tx), c}
}

// cacheTx is the Runner of a caller's transaction of pgx.
type cacheTx struct {
	Runner
	cache *Cache
}

// Run is Runner's.
func (t cacheTx) Run(ctx context.Context, m Mode, f func(db.DBTX) error) error {
	err := t.Runner.Run(ctx, m, f)
	if err != nil && pooler.Lost(err) {
		t.cache.turnOff(err)
	}
	return err
}

// withoutCache returns f with statements that are not prepared.
func withoutCache(f func(db.DBTX) error) func(db.DBTX) error {
	return func(tx db.DBTX) error { return f(uncached{tx}) }
}

// uncached sends each statement with its parameters in one message group and leaves none
// prepared. It has no pipeline: pgx has no such mode for one.
type uncached struct{ db.DBTX }

func (u uncached) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return u.DBTX.Exec(ctx, sql, inExecMode(args)...)
}

func (u uncached) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return u.DBTX.Query(ctx, sql, inExecMode(args)...)
}

func (u uncached) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return u.DBTX.QueryRow(ctx, sql, inExecMode(args)...)
}

// inExecMode returns args after the mode, as pgx takes them.
func inExecMode(args []any) []any { return append([]any{pgx.QueryExecModeExec}, args...) }

// Uncacheable implements Connections.
func (p *pgxConnections) Uncacheable(error) bool { return true }

// renewEvery is the least time between two resets of a pool.
const renewEvery = time.Second

// Renew implements Connections. Connections in use are closed after their use.
func (p *pgxConnections) Renew() bool {
	p.renewing.Lock() // a caller that comes meanwhile waits, to get a new connection
	defer p.renewing.Unlock()
	if now := time.Now(); p.renewed.IsZero() || now.Sub(p.renewed) >= renewEvery {
		p.Reset()
		p.renewed = now
		return true
	}
	return false
}

// Uncacheable implements Connections. pgx takes a mode over database/sql too; other
// drivers do not. A driver is known by its errors, because it may be wrapped.
func (c sqlConnections) Uncacheable(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer)
}
