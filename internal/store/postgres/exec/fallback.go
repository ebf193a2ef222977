package exec

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/pooler"
)

// fallback is a Runner over a pool. It tries once more, in another way, after errors that
// mean that the server has executed nothing:
//
//   - A prepared statement was missing or stale: without the driver's cache of statements.
//     If a pooler was the cause, the cache is not used again.
//   - The server is read-only: on a new connection, which may lead to the new primary
//     after a failover.
//
// A statement that fails so was not executed, and a transaction in which one fails is
// rolled back. So nothing is counted twice.
type fallback struct {
	inner       Runner
	connections Connections
	cache       *Cache
}

// NewFallback returns a Runner that runs statements by inner, a Runner over connections.
func NewFallback(inner Runner, connections Connections, cache *Cache) Runner {
	return &fallback{inner: inner, connections: connections, cache: cache}
}

// Do is Runner.Do.
func (r *fallback) Do(ctx context.Context, f func(db.DBTX) error) error {
	return r.try(ctx, f, r.inner.Do)
}

// Within is Runner.Within.
func (r *fallback) Within(ctx context.Context, f func(db.DBTX) error) error {
	return r.try(ctx, f, r.inner.Within)
}

// Run is Runner.Do or Runner.Within.
type Run = func(ctx context.Context, f func(db.DBTX) error) error

func (r *fallback) try(ctx context.Context, f func(db.DBTX) error, run Run) error {
	cached := !r.cache.off.Load()
	if !cached {
		f = withoutCache(f)
	}
	err := run(ctx, f)
	switch {
	case err == nil || ctx.Err() != nil:
	case cached && (pooler.Lost(err) || stale(err)) && r.connections.Uncacheable(err):
		return r.uncached(ctx, f, run, err)
	case sqlState(err) == readOnlyTransaction:
		return r.elsewhere(ctx, f, run)
	}
	return err
}

// elsewhere tries f again on other connections: once, and further while there may be
// another one. Each failure has found a connection that was read-only.
func (r *fallback) elsewhere(ctx context.Context, f func(db.DBTX) error, run Run) (err error) {
	for again := true; again; {
		again = r.connections.Renew()
		if err = run(ctx, f); sqlState(err) != readOnlyTransaction || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// uncached tries f once more after first, without the cache of statements.
func (r *fallback) uncached(ctx context.Context, f func(db.DBTX) error, run Run, first error) error {
	err := run(ctx, withoutCache(f))
	if !answered(err) || pooler.Lost(err) {
		return fmt.Errorf("%w; once more without prepared statements: %w", first, err)
	}
	if pooler.Lost(first) {
		r.cache.turnOff(first)
	}
	return err
}

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

// Do is Runner.Do.
func (t cacheTx) Do(ctx context.Context, f func(db.DBTX) error) error {
	return t.note(t.Runner.Do(ctx, f))
}

// Within is Runner.Within.
func (t cacheTx) Within(ctx context.Context, f func(db.DBTX) error) error {
	return t.note(t.Runner.Within(ctx, f))
}

func (t cacheTx) note(err error) error {
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
