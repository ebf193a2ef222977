// Package exec runs statements on connections of a pool of pgx or database/sql, or in a
// caller's transaction. It retries after conflicts, pipelines statements, and has a
// circuit breaker.
package exec

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/internal/store"
)

// The SQLSTATEs that matter here, or their prefixes.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	lockNotAvailable     = "55P03"
	undefinedTable       = "42P01"
	undefinedColumn      = "42703"
	undefinedFunction    = "42883"
	uniqueViolation      = "23505"
	invalidText          = "22P02"
	tooManyConnections   = "53300"
	completionUnknown    = "40003"
	queryCanceled        = "57014" // by a timeout, or by someone
	idleInTransaction    = "25P03"
	transactionTimeout   = "25P04"
	inFailedTransaction  = "25P02"
	rejected             = "08004"
	protocolViolation    = "08P01" // of PgBouncer, for all errors of older versions
	shardMoved           = "PGL01" // of pglimit_on_shard: the keys are not, or no longer, in one shard of the node
	strictIsolation      = "PGL02" // of pglimit_shard: the transaction is not at read committed
	dataException        = "22"    // a class: this database cannot take the value
	constraintViolation  = "23"    // a class
	connectionException  = "08"    // a class
	insufficientResource = "53"    // a class
	internalError        = "XX"    // a class
	serverGoes           = "57P"   // the server or the connection shuts down, or is not ready yet
)

// ErrOtherPeriod: a statement wrote nothing, because the database's clock is in a
// calendar period that the statement did not get.
var ErrOtherPeriod = fmt.Errorf("%w: its clock is in another period than this machine's", store.ErrUnavailable)

// noConnection is the error of a wait for a connection of the pool. It says nothing about
// the database, so it does not count for the circuit breaker.
type noConnection struct {
	error
	exhausted bool // all were in use by others than the limiter
}

func (n *noConnection) Unwrap() error { return n.error }

// sqlState returns the SQLSTATE of an error that the server sent, else "". The errors of
// pgx and lib/pq have this method.
func sqlState(err error) string {
	if err == nil {
		return "" // before answer is allocated
	}
	var answer interface{ SQLState() string }
	if errors.As(err, &answer) {
		return answer.SQLState()
	}
	return ""
}

// conflict reports whether running the same statement again may help.
func conflict(err error) bool {
	switch sqlState(err) {
	case serializationFailure, deadlockDetected, lockNotAvailable, shardMoved:
		return true
	}
	return false
}

// again reports whether running one of our own transactions again may help. If its client
// was idle for too long, the server has rolled it back, even if a commit was on its way.
func again(err error) bool {
	code := sqlState(err)
	return conflict(err) || code == idleInTransaction || code == strictIsolation
}

// IsConflict reports whether running the caller's transaction again may help.
func IsConflict(err error) bool { return conflict(err) || stale(err) }

// SQLState returns the SQLSTATE of an error that the server sent, else "".
func SQLState(err error) string { return sqlState(err) }

// LosesAnswer reports whether an error of this SQLSTATE may come after the statement has
// taken effect: the server or the connection ended, or it does not know itself.
func LosesAnswer(code string) bool {
	return strings.HasPrefix(code, serverGoes) || strings.HasPrefix(code, connectionException) ||
		strings.HasPrefix(code, internalError) || code == completionUnknown
}

// IsLockTimeout reports whether a row was locked for longer than the lock_timeout that a statement
// under ctx has set. A statement can wait for two locks of a row, one after the other. If the time
// ends just as it gets the first, PostgreSQL has forgotten why it cancels when it waits for the
// second: it reports what it reports if somebody cancels the statement.
func IsLockTimeout(ctx context.Context, err error) bool {
	switch sqlState(err) {
	case lockNotAvailable:
		return true
	case queryCanceled:
		return ctx.Err() == nil && !strings.Contains(err.Error(), "statement timeout")
	}
	return false
}

// Waited reports whether the server undid a statement that may have waited for a lock.
func Waited(err error) bool { return conflict(err) || sqlState(err) == queryCanceled }

// IsDuplicate reports whether a unique index refused a row.
func IsDuplicate(err error) bool { return sqlState(err) == uniqueViolation }

// IsDataError reports whether the statement failed because of a value in it.
func IsDataError(err error) bool {
	code := sqlState(err)
	return len(code) == 5 && (code[:2] == dataException || code[:2] == constraintViolation)
}

// kinds are the store's errors that have been translated already.
var kinds = []error{store.ErrUnavailable, store.ErrMisconfigured, store.ErrOverloaded, store.ErrInvalid, store.ErrUnsupported, store.ErrRetryTx}

// Translate returns a driver's error as one of the store's errors. FailOpen answers an
// ErrUnavailable, so that is only an error that says that the database is away. An error
// that is not known here is an ErrMisconfigured.
func Translate(err error, inTx bool) error {
	if err == nil || err == store.ErrAlone || err == store.ErrElsewhere || err == errRecorded || isAny(err, kinds...) {
		return err
	}
	if n := (*noConnection)(nil); errors.As(err, &n) && n.exhausted {
		return fmt.Errorf("%w: %w", store.ErrBusy, err)
	}
	code := sqlState(err)
	statement := !atLogin(err) // whose values and names the server refuses
	switch {
	case inTx && (conflict(err) || stale(err)):
		return fmt.Errorf("%w: %w", store.ErrRetryTx, err)
	case code == "57014" && strings.Contains(err.Error(), "statement timeout"):
		return fmt.Errorf("%w: raise statement_timeout if `pglimit doctor` says that it is short: %w", store.ErrUnavailable, err)
	case code == strictIsolation:
		return fmt.Errorf("%w: where Citus distributes the tables, begin the transaction at read committed: %w", store.ErrUnsupported, err)
	case code == tooManyConnections, pooler.Full(err):
		return fmt.Errorf("%w: the server has no connection left for this role: end the sessions that others keep open, or raise max_connections or the role's CONNECTION LIMIT, or the pooler's: %w", store.ErrOverloaded, err)
	case conflict(err):
		return fmt.Errorf("%w: each of several tries met a conflict with other transactions: %w", store.ErrOverloaded, err)
	case statement && (code == undefinedTable || code == undefinedColumn || code == undefinedFunction):
		return fmt.Errorf("%w: %w", store.ErrNotMigrated, err)
	case statement && len(code) == 5 && code[:2] == dataException:
		return fmt.Errorf("%w: %w", store.ErrInvalid, err)
	case outage(err):
		return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w: %w", store.ErrMisconfigured, nextStep(err, inTx), err)
}

// isAny reports whether err is one of targets.
func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(one error) bool { return errors.Is(err, one) })
}

// atLogin reports whether the server refused a session, not only a statement. A pooler
// passes the error of its login on to the clients that wait for it.
func atLogin(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, new(*pgconn.ConnectError)) || errors.Is(err, sqldb.ErrConnect) || errors.As(err, &answer) && answer.Severity == "FATAL"
}

// outage reports whether err says that the database is away: no connection, a server that
// shuts down, starts or lacks a resource, or an answer that broke or came too late.
func outage(err error) bool {
	switch code := sqlState(err); code {
	case "":
		return noAnswer(err)
	case protocolViolation:
		return pooler.Away(err)
	case queryCanceled, completionUnknown, idleInTransaction, transactionTimeout:
		return true
	default:
		return strings.HasPrefix(code, serverGoes+"0") || strings.HasPrefix(code, insufficientResource) ||
			strings.HasPrefix(code, connectionException) && code != rejected ||
			strings.HasPrefix(code, internalError) && nodeLost(err)
	}
}

// nodeLost reports whether a coordinator of Citus passes on libpq's words for a connection to a
// node that broke, says that a node did not answer a commit, or looks for a shard that was split or
// moved meanwhile. It gives them no other SQLSTATE than an internal error's.
func nodeLost(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{
		"server closed the connection unexpectedly", "invalid socket", "no connection to the server", "could not receive data from server",
		"could not send data to server", "connection has been closed unexpectedly", "connection to the remote node",
		"could not commit transaction for shard", "failed to commit transaction on", "could not find valid entry for shard",
	}, func(words string) bool { return strings.Contains(text, words) })
}

// noAnswer reports whether a driver's own error means that there was no connection, or that
// it ended, or the time, before the answer.
func noAnswer(err error) bool {
	var refused *net.OpError
	text := err.Error()
	switch {
	case isAny(err, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, context.Canceled, driver.ErrBadConn, sql.ErrConnDone, pgconn.ErrConnClosed):
		return true
	case errors.As(err, new(*fs.PathError)), errors.As(err, &refused) && strings.HasSuffix(refused.Op, " error"):
		return false // a file of the application, such as a password; what one side refuses, as crypto/tls names it
	case errors.As(err, new(*pgconn.ConnectError)) && (strings.Contains(text, ": dial error: ") || strings.Contains(text, ": hostname resolving error: ")):
		return true // by a function of the application, whose errors may have any type
	}
	return errors.As(err, new(net.Error))
}

// stale reports whether a prepared statement does not fit its tables any longer, because
// they were changed.
func stale(err error) bool {
	return sqlState(err) == featureNotSupported && strings.Contains(err.Error(), "cached plan")
}

// answered reports whether the server answered: with a result, an SQLSTATE that does not
// mean it is shutting down or full or refuses the login, or an error of this package or
// ErrLocked. A refused login is no outage, and its error says so while the breaker is open
// too. The breaker only spares the server a connection for each request.
func answered(err error) bool {
	if err == nil || err == store.ErrLocked || err == ErrOtherPeriod || err == ErrRolledBack || err == ErrAdmitted || err == ErrOneByOne || errors.Is(err, store.ErrMisconfigured) {
		return true
	}
	code := sqlState(err)
	if rolledBack(err) { // also if it reports that another node of a cluster shuts down
		return true
	}
	return code != "" && code != tooManyConnections && !strings.HasPrefix(code, serverGoes) && !atLogin(err)
}

// notAll begins the text that a TakeAll of queries/ fails to cast. The message around it
// depends on the server's language.
const notAll = "pglimit: nothing is taken"

// IsNotAll reports whether a TakeAll failed because it could not take all. The server has
// undone its transaction.
func IsNotAll(err error) bool {
	return sqlState(err) == invalidText && strings.Contains(err.Error(), notAll)
}

// ErrRolledBack ends a Transaction that has its answer and must leave no
// change.
var ErrRolledBack = errors.New("pglimit: rolled back")

// ErrAdmitted ends a Transaction whose request was admitted before. It must leave no change.
var ErrAdmitted = errors.New("pglimit: admitted before")

// ErrOneByOne is AtOnce's error if the connection has no pipeline.
var ErrOneByOne = errors.New("pglimit: this connection sends statements one by one")

// ErrNoPipeline: the connection cannot send many statements at once. Nothing was sent.
var ErrNoPipeline = errors.New("pglimit: no pipeline")

// errRecorded is the answer to a call while it is recorded.
var errRecorded = errors.New("pglimit: recorded")

// noRow is a row whose Scan returns the error.
type noRow struct{ error }

func (n noRow) Scan(...any) error { return n.error }

// The SQLSTATEs of a server that answers, but refuses until someone changes a setting.
const (
	insufficientPrivilege = "42501"
	noSuchDatabase        = "3D000"
	readOnlyTransaction   = "25006"
	featureNotSupported   = "0A000"
	invalidSchema         = "3F000"
	invalidAuthorization  = "28" // a class: a wrong password, no such role, pg_hba.conf
	syntaxOrAccess        = "42" // a class: the statement does not fit the tables
)

// The next steps.
var (
	errLogin    = errors.New("the login is refused: correct the user and password in the database's URL, or let pg_hba.conf admit it")
	errKey      = errors.New("a table of pglimit has lost its primary key: `pglimit doctor` names it")
	errDatabase = errors.New("correct the database's name in the URL, or create the database")
	errThrough  = errors.New("the pooler refuses the login: correct the URL, or the pooler's users, databases and ignore_startup_parameters")
	errReadOnly = errors.New("the server, role or session is read-only: connect to the primary (several hosts and " +
		"target_session_attrs=read-write in the URL find it), and leave default_transaction_read_only off")
	errReadOnlyTx = errors.New("the transaction is read-only: begin it read-write, on the primary")
	errTxFailed   = errors.New("the transaction has failed: roll it back")
	errTxEnded    = errors.New("the transaction has ended: take limits before its commit or rollback")
	errStatement  = errors.New("the statement does not fit this server or its tables: use PostgreSQL 13 or later, and compare `pglimit migrate status`")
	errSession    = errors.New("the server refuses the connection, which is no outage: correct what it names, in the database's URL or by ALTER ROLE or ALTER DATABASE")
	errAnswer     = errors.New("the server answered with an error, which is no outage: correct what it names")
	errDriver     = errors.New("the driver refuses the connection or the statement, which is no outage: correct what it names, in the database's URL or the pool's configuration")
)

// nextStep returns what to do about an error that is no outage.
func nextStep(err error, inTx bool) error {
	code := sqlState(err)
	class := code[:min(2, len(code))]
	switch {
	case pooler.Lost(err) && inTx:
		return fmt.Errorf("%w; %w", errTxFailed, pooler.ErrStatements)
	case pooler.Lost(err):
		return pooler.ErrStatements
	case pooler.Refused(err):
		return errThrough
	case class == invalidAuthorization:
		return errLogin
	case code == noSuchDatabase:
		return errDatabase
	case code == "42P10": // of ON CONFLICT
		return errKey
	case code == readOnlyTransaction && inTx:
		return errReadOnlyTx
	case code == readOnlyTransaction, errors.Is(err, pgconn.ErrReadOnlyConnection):
		return errReadOnly
	case code == insufficientPrivilege:
		return grant(err)
	case inTx && code == inFailedTransaction:
		return errTxFailed
	case isAny(err, pgx.ErrTxClosed, sql.ErrTxDone):
		return errTxEnded
	case code == "":
		return errDriver
	case atLogin(err):
		return errSession
	case class == syntaxOrAccess, code == featureNotSupported, code == invalidSchema:
		return errStatement
	}
	return errAnswer
}

// denied is the server's message about a missing right, in English.
var denied = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(permission denied for|row-level security policy for) (\w+) "?([^"\s]+)"?`)
})

// grant returns the GRANT that is missing, as far as the server's message names it.
func grant(err error) error {
	const all = "`pglimit migrate grants` prints all that it needs"
	found := denied().FindStringSubmatch(err.Error())
	if found == nil {
		return errors.New("grant this program's role SELECT, INSERT, UPDATE and DELETE on pglimit's tables: " + all)
	}
	kind, name := found[2], found[3]
	switch {
	case found[1] != "permission denied for":
		return fmt.Errorf("a row-level security policy refuses this program's role on %s: disable row-level security there, or add a policy for the role", name)
	case kind == "table", kind == "relation":
		return fmt.Errorf("grant this program's role SELECT, INSERT, UPDATE and DELETE on %s: %s", name, all)
	case kind == "database":
		return fmt.Errorf("grant this program's role CONNECT on database %s: %s", name, all)
	case kind == "schema":
		return fmt.Errorf("grant this program's role USAGE on schema %s: %s", name, all)
	case kind == "function":
		return fmt.Errorf("grant this program's role EXECUTE on function %s: %s", name, all)
	}
	return fmt.Errorf("grant this program's role the right to use %s %s: %s", kind, name, all)
}
