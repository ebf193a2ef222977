// Package sqldb runs the statements of db/, which use pgx's interfaces, over database/sql
// with any PostgreSQL driver.
//
// Parameters have types that every driver accepts: text, bool, float8 and bigint as they
// are, arrays as PostgreSQL's array literals. All rows are read before the first is
// returned: a statement is committed only when its end has been read, and lib/pq allows
// one statement at a time on a connection.
package sqldb

import (
	"context"
	"database/sql"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// Tx runs statements in a caller's transaction. Like the transaction, it is for one
// goroutine at a time.
func Tx(tx *sql.Tx) db.DBTX { return adapter{inTx{tx}} }

// session runs statements with encoded parameters.
type session interface {
	exec(ctx context.Context, sql string, args []any) (affected int64, err error)
	query(ctx context.Context, sql string, args []any) (*rows, error)
}

// adapter makes a session a db.DBTX.
type adapter struct{ session }

func (a adapter) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	args, err := encode(args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	n, err := a.exec(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return pgconn.NewCommandTag(strconv.FormatInt(n, 10)), nil // ends in the count, like a server's tag
}

func (a adapter) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	args, err := encode(args)
	if err != nil {
		return nil, err
	}
	r, err := a.query(ctx, sql, args)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (a adapter) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, err := a.Query(ctx, sql, args...)
	return row{r, err}
}

// querier has the methods that *sql.Conn and *sql.Tx share.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// inTx is the session of a transaction or a connection.
type inTx struct{ querier }

func (t inTx) exec(ctx context.Context, sql string, args []any) (int64, error) {
	result, err := t.ExecContext(ctx, sql, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t inTx) query(ctx context.Context, sql string, args []any) (*rows, error) {
	r, err := t.QueryContext(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return readAll(r)
}
