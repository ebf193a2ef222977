// Package pooler detects a connection pooler, such as PgBouncer, between this program and
// the server, and recognizes the errors that it causes.
package pooler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrStatements is the error of a prepared statement that is missing on the server's
// connection. Its message has the next step.
var ErrStatements = errors.New("a pooler shares the server's connections, and statements prepared on one are missing on others: " +
	"add default_query_exec_mode=exec (or cache_describe) to the database's URL; for lib/pq, binary_parameters=yes")

// SQLSTATEs that a pooler causes.
const (
	noSuchStatement    = "26000" // the statement was prepared on another connection
	duplicateStatement = "42P05" // another client has prepared it on this connection
	protocolViolation  = "08P01" // for example, the wrong number of arguments; older PgBouncers use it for all errors
	dataException      = "22"    // a class: for example, arguments of the wrong type
)

// sqlState returns the SQLSTATE of an error of pgx or lib/pq, else "".
func sqlState(err error) string {
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// Lost reports whether err means that a pooler separated a prepared statement from its
// connection. The server has then not executed the statement.
func Lost(err error) bool {
	switch sqlState(err) {
	case noSuchStatement, duplicateStatement:
		return true
	case protocolViolation: // the arguments met another client's statement
		return strings.Contains(err.Error(), "bind message supplies")
	}
	return false
}

// PgBouncer's words, which it does not translate.
var (
	// for logins that fail until someone changes a setting
	refusals = []string{
		"password authentication failed", "SASL authentication failed", "auth failed", "no such user",
		"no such database", "does not exist", "unsupported startup parameter", "no pg_hba.conf entry", "bouncer config error",
	}
	// for a server that is away or late, and for its own end
	outages = []string{
		"timeout", "server conn crashed", "shutting down", "try again later", "connect failed", "cannot connect", "lookup failed",
		"the database system", "server lifetime over", "admin forced disconnect",
	}
	// for its bounds on clients
	bounds = []string{"no more connections allowed", "client connections exceeded"}
)

// Refused reports whether err means that PgBouncer, or the server behind it, refuses this
// program's login. Newer versions send the server's own SQLSTATEs instead.
func Refused(err error) bool { return says(err, refusals) }

// Away reports whether err means that PgBouncer, or the server behind it, is away or late.
func Away(err error) bool { return says(err, outages) && !Refused(err) }

// Full reports whether err means that PgBouncer admits no more clients.
func Full(err error) bool { return says(err, bounds) }

// says reports whether err is of PgBouncer's SQLSTATE, with one of these words.
func says(err error, words []string) bool {
	var answer interface { // without the names of the user and the database, which pgx adds
		error
		SQLState() string
	}
	return errors.As(err, &answer) && answer.SQLState() == protocolViolation &&
		slices.ContainsFunc(words, func(one string) bool { return strings.Contains(answer.Error(), one) })
}

// Explain adds ErrStatements to an error that is Lost, and returns any other unchanged.
func Explain(err error) error {
	if Lost(err) {
		return explained(err)
	}
	return err
}

// ExplainIn does what Explain does for an error behind a pooler, on connections that
// execute statements in mode. With QueryExecModeDescribeExec it also recognizes errors
// about arguments: that mode needs two round trips, and another client's statement may
// come between them.
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

// Between reports whether there is a pooler between pool and the server. It compares the
// id of the process that answers with the id that the connection got at its start.
func Between(ctx context.Context, pool *pgxpool.Pool) (between bool, err error) {
	err = pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
		between, err = BetweenOn(ctx, c.Conn())
		return err
	})
	return between, err
}

// BetweenOn is Between for one connection.
func BetweenOn(ctx context.Context, c *pgx.Conn) (bool, error) {
	var pid int64
	err := c.QueryRow(ctx, "SELECT pg_backend_pid()", modeOf(c.Config())).Scan(&pid)
	return pid != int64(c.PgConn().PID()), err
}

// checks is the number of times that each connection executes Check's statement.
const checks = 10

// Check executes one statement on two connections of pool in turn, in the pool's own mode.
// It returns an error that is Lost if a pooler separates prepared statements from their
// connections. One that does not, or a mode that prepares nothing, passes. A pool of one
// connection is not checked.
func Check(ctx context.Context, pool *pgxpool.Pool) error {
	if pool.Config().MaxConns < 2 {
		return nil
	}
	var connections []*pgx.Conn
	for range 2 {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
		connections = append(connections, c.Conn())
	}
	return CheckOn(ctx, connections)
}

// CheckOn is Check for some connections of a pool.
func CheckOn(ctx context.Context, connections []*pgx.Conn) error {
	for range checks {
		for _, c := range connections {
			var n int64
			if err := c.QueryRow(ctx, "SELECT $1::bigint", int64(1)).Scan(&n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Mode returns a mode for statements over pool that works through any pooler, because it
// prepares nothing.
func Mode(pool *pgxpool.Pool) pgx.QueryExecMode { return modeOf(pool.Config().ConnConfig) }

func modeOf(c *pgx.ConnConfig) pgx.QueryExecMode {
	if mode := c.DefaultQueryExecMode; mode == pgx.QueryExecModeSimpleProtocol {
		return mode
	}
	return pgx.QueryExecModeExec
}
