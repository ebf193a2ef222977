package exec

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/sqldb"
)

// MaxTries is the number of times that one decision is tried after conflicts.
const MaxTries = 5

// Runner runs statements on connections of a pool or in the caller's transaction.
type Runner interface {
	// Do runs f, which sends one statement or one Pipeline. On a connection of a pool it
	// runs f again after a conflict.
	Do(ctx context.Context, f func(db.DBTX) error) error
	// Within runs f, which may send several statements, as one transaction. It commits if
	// f returns nil, else rolls back, and runs f again after a conflict. In the caller's
	// transaction it only runs f.
	Within(ctx context.Context, f func(db.DBTX) error) error
}

// ErrRolledBack ends a transaction of Within that has its answer and must leave no
// change.
var ErrRolledBack = errors.New("pglimit: rolled back")

// Connections are a pool of pgx or of database/sql.
type Connections interface {
	// Crowded reports whether all connections are in use by others than the limiter.
	Crowded() bool
	// Each runs f, which sends one statement, on a connection.
	Each(ctx context.Context, f func(db.DBTX) error) error
	// Once runs f in a transaction at read committed.
	Once(ctx context.Context, f func(db.DBTX) error) error
	// Pipelines reports whether a connection can send many statements at once.
	Pipelines() bool
	// Uncacheable reports whether the driver that returned err can send statements
	// without preparing them, if pgx.QueryExecModeExec precedes their parameters.
	Uncacheable(err error) bool
	// Renew gives up the connections after one was found to be read-only. It reports
	// whether another try may get another connection. If the server stays read-only, that
	// is only now and then, to spare the application's pool.
	Renew() bool
}

// NewPool returns a Runner that runs each statement on a connection of the pool.
func NewPool(c Connections) Runner { return &pool{Connections: c} }

// InTx returns a Runner that runs everything in the caller's transaction.
func InTx(tx db.DBTX) Runner { return inTx{tx} }

// pool is the Runner that NewPool returns.
type pool struct {
	Connections
	// explicit is set after a serialization failure: the database's default isolation is
	// stricter than read committed. Under load a statement fails there on each retry. So
	// from then on each runs in a transaction at read committed, for two more round
	// trips.
	explicit atomic.Bool
}

func (p *pool) Do(ctx context.Context, f func(db.DBTX) error) (err error) {
	for range MaxTries {
		if p.explicit.Load() {
			err = p.Once(ctx, f)
		} else {
			err = p.Each(ctx, f)
		}
		if !again(err) {
			return err
		}
		if sqlState(err) == serializationFailure {
			p.explicit.Store(true)
		}
	}
	return err
}

func (p *pool) Within(ctx context.Context, f func(db.DBTX) error) (err error) {
	for range MaxTries {
		if err = p.Once(ctx, f); !again(err) {
			return err
		}
	}
	return err
}

type inTx struct{ db.DBTX }

func (t inTx) Do(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

func (t inTx) Within(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

// SQL returns the connections of a *sql.DB. Their own transactions may be idle for so long:
// see Idle.
func SQL(db *sql.DB, idle time.Duration) Connections {
	return sqlConnections{sqldb.NewPool(db, newIdleLimit(idle))}
}

// SQLTx returns a transaction of database/sql as a db.DBTX.
func SQLTx(tx *sql.Tx) db.DBTX { return sqldb.Tx(tx) }

type sqlConnections struct{ *sqldb.Pool }

func (c sqlConnections) Each(_ context.Context, f func(db.DBTX) error) error {
	return crowded(f(c.Pool))
}

// Pipelines implements Connections.
func (c sqlConnections) Pipelines() bool { return false }

// Crowded implements Connections.
func (c sqlConnections) Crowded() bool { return c.Pool.Crowded() }

func (c sqlConnections) Once(ctx context.Context, f func(db.DBTX) error) error {
	return crowded(c.InTx(ctx, f))
}

// crowded marks an ErrBusy of database/sql as a wait for a connection.
func crowded(err error) error {
	if errors.Is(err, sqldb.ErrBusy) {
		return &noConnection{err, true}
	}
	return err
}
