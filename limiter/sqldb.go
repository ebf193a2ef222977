package limiter

import (
	"context"
	"database/sql"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/sqldb"
)

// NewSQL is New for users of database/sql, be it themselves or through GORM, ent
// or bun: the same Limiter over any PostgreSQL driver. pgx's stdlib and lib/pq
// are tested. migrations.UpSQL makes the tables. db stays the caller's to close.
// A nil db, or a number in config that has no meaning, is an ErrInvalid; nothing
// is asked of the database yet.
//
// db.SetMaxOpenConns comes before NewSQL, which reads it: a quarter of that many
// may wait for keys whose rows other transactions hold, and four if it is
// unlimited. Config.Timeout holds even where the driver waits for longer; until
// the driver is done, its connection and a goroutine are not. A statement
// whose answer was lost is not sent again. After a second without an answer a
// connection is pinged before it is used.
//
// lib/pq prepares each statement anew, which is a second round trip and the
// server's time for planning; its binary_parameters=yes saves the round trip.
// pgx's stdlib prepares a statement once for each connection. Either way
// db.SetMaxIdleConns is worth raising: it is 2, and what is above is closed
// after each use.
func NewSQL(db *sql.DB, config *Config) (*Limiter, error) {
	if db == nil {
		return nil, invalid("db", "nil", "open one with sql.Open")
	}
	most := db.Stats().MaxOpenConnections
	if most == 0 {
		most = unlimitedConns
	}
	return newPooled(sqlConnections{sqldb.NewPool(db)}, most, config)
}

// unlimitedConns is for how many connections a pool without a limit counts:
// the server has one.
const unlimitedConns = 16

// InSQLTx is InTx for a transaction of database/sql. It takes the transactions
// of any *sql.DB on the limiter's database, and so it does for a Limiter that
// New made; one that NewSQL made has InTx too.
func (l *Limiter) InSQLTx(tx *sql.Tx) *Tx { return l.inTx(sqldb.Tx(tx)) }

// sqlConnections are those of a *sql.DB.
type sqlConnections struct{ *sqldb.Pool }

func (c sqlConnections) once(ctx context.Context, f func(db.DBTX) error) error {
	return c.InTx(ctx, f)
}
