// Package pooler recognizes a connection pooler, such as PgBouncer, between this
// program and the server, and the errors that it causes.
package pooler

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrStatements says that prepared statements got lost between the server's
// connections, and names the next step.
var ErrStatements = errors.New("a pooler shares the server's connections, and statements prepared on one are missing on others: " +
	"add default_query_exec_mode=exec (or cache_describe) to the database's URL")

// SQLSTATEs of a statement that is prepared on another connection, and of one
// that another client prepared.
const (
	noSuchStatement    = "26000"
	duplicateStatement = "42P05"
	protocolViolation  = "08P01" // such as another number of arguments
	dataException      = "22"    // a class, such as arguments of other types
)

// Lost reports whether err is that of a prepared statement which a pooler
// parted from its connection.
func Lost(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (answer.Code == noSuchStatement || answer.Code == duplicateStatement)
}

// Explain adds ErrStatements to an error that is Lost. Others it returns as they
// are.
func Explain(err error) error {
	if Lost(err) {
		return explained(err)
	}
	return err
}

// ExplainIn is Explain for an error seen behind a pooler, on connections whose
// statements are run in mode. QueryExecModeDescribeExec sends one statement in two
// round trips, so that another client's may come between: a complaint about the
// arguments is then the pooler's doing too.
func ExplainIn(mode pgx.QueryExecMode, err error) error {
	var answer *pgconn.PgError
	if mode == pgx.QueryExecModeDescribeExec && errors.As(err, &answer) &&
		(answer.Code == protocolViolation || strings.HasPrefix(answer.Code, dataException)) {
		return explained(err)
	}
	return Explain(err)
}

func explained(err error) error {
	if errors.Is(err, ErrStatements) {
		return err
	}
	return fmt.Errorf("%w: %w", err, ErrStatements)
}

// Between reports whether a pooler stands between pool and the server. It
// compares the process that answers with the one that the connection was told
// of when it was made.
func Between(ctx context.Context, pool *pgxpool.Pool) (between bool, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		var pid int64
		if err := c.QueryRow(ctx, "SELECT pg_backend_pid()", Mode(pool)).Scan(&pid); err != nil {
			return err
		}
		between = pid != int64(c.Conn().PgConn().PID())
		return nil
	})
	return between, err
}

// Mode returns a mode for statements over pool that works through any pooler:
// it prepares nothing.
func Mode(pool *pgxpool.Pool) pgx.QueryExecMode {
	if mode := pool.Config().ConnConfig.DefaultQueryExecMode; mode == pgx.QueryExecModeSimpleProtocol {
		return mode
	}
	return pgx.QueryExecModeExec
}
