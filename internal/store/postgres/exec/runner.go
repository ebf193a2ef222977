package exec

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/sqldb"
)

// MaxTries bounds how often one decision is tried after conflicts.
const MaxTries = 5

// Runner runs statements on connections of its own or on the caller's.
type Runner interface {
	// Do runs f, which sends one statement; on a connection of its own again
	// after a conflict.
	Do(ctx context.Context, f func(db.DBTX) error) error
	// Within runs f, which may send several statements, as one transaction: it
	// commits if f returns nil, else rolls back; again after a conflict. In the
	// caller's transaction it only runs f.
	Within(ctx context.Context, f func(db.DBTX) error) error
}

// ErrRolledBack ends a transaction of Within that has its answer and must leave
// nothing.
var ErrRolledBack = errors.New("pglimit: rolled back")

// Connections are those of pgx's pool or of database/sql's.
type Connections interface {
	db.DBTX
	// Once runs f in a transaction at read committed.
	Once(ctx context.Context, f func(db.DBTX) error) error
}

// NewPool returns a Runner that runs each statement on a connection of its own.
func NewPool(c Connections) Runner { return &pool{Connections: c} }

// InTx returns a Runner that runs everything in the caller's transaction.
func InTx(tx db.DBTX) Runner { return inTx{tx} }

// pool is NewPool's.
type pool struct {
	Connections
	// explicit is set once a statement failed to serialize: the database's
	// default isolation is then stricter than read committed, which a decision
	// needs, so from then on each statement sets it.
	explicit atomic.Bool
}

func (p *pool) Do(ctx context.Context, f func(db.DBTX) error) (err error) {
	for range MaxTries {
		if p.explicit.Load() {
			err = p.Once(ctx, f)
		} else {
			err = f(p.Connections)
		}
		if !conflict(err) {
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
		if err = p.Once(ctx, f); !conflict(err) {
			return err
		}
	}
	return err
}

type inTx struct{ db.DBTX }

func (t inTx) Do(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

func (t inTx) Within(_ context.Context, f func(db.DBTX) error) error { return f(t.DBTX) }

// SQL returns the connections of a *sql.DB.
func SQL(db *sql.DB) Connections { return sqlConnections{sqldb.NewPool(db)} }

// SQLTx returns a transaction of database/sql as the statements take it.
func SQLTx(tx *sql.Tx) db.DBTX { return sqldb.Tx(tx) }

type sqlConnections struct{ *sqldb.Pool }

func (c sqlConnections) Once(ctx context.Context, f func(db.DBTX) error) error {
	return c.InTx(ctx, f)
}
