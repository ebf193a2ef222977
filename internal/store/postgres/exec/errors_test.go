package exec

import (
	"context"
	"crypto/x509"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/sqldb"
	"github.com/pglimit/pglimit/internal/store"
)

// pqError has what is used of lib/pq's error.
type pqError struct{ code, message string }

func (e *pqError) Error() string    { return "pq: " + e.message + " (" + e.code + ")" }
func (e *pqError) SQLState() string { return e.code }

// refusedConnect returns the error of a refused connection, as pgx wraps it.
func refusedConnect(code, message string) error {
	return fmt.Errorf("acquire: %w", errors.Join(errors.New("tls error: server refused TLS connection"), &pgconn.PgError{Severity: "FATAL", Code: code, Message: message}))
}

// TestTranslate: each SQLSTATE becomes one of the store's errors, in and outside of a
// transaction, whichever driver returned it. An outage is only what says so.
func TestTranslate(t *testing.T) {
	all := []error{store.ErrInvalid, store.ErrOverloaded, store.ErrUnavailable, store.ErrMisconfigured, store.ErrNotMigrated, store.ErrRetryTx}
	mis, not := []error{store.ErrMisconfigured}, []error{store.ErrMisconfigured, store.ErrNotMigrated}
	away, retry := []error{store.ErrUnavailable}, []error{store.ErrRetryTx}
	invalid, full := []error{store.ErrInvalid}, []error{store.ErrOverloaded}
	for _, c := range []struct {
		code, message string
		alone, inTx   []error
		says          string
	}{
		{"42501", "permission denied for table pglimit_token_bucket", mis, mis, "SELECT, INSERT, UPDATE and DELETE on pglimit_token_bucket: `pglimit migrate grants`"},
		{"42501", "permission denied for schema limits", mis, mis, "USAGE on schema limits"},
		{"42501", `permission denied for database "shop"`, mis, mis, "CONNECT on database shop"},
		{"42501", "permission denied for function f", mis, mis, "EXECUTE on function f"},
		{"42501", "permission denied for sequence s", mis, mis, "use sequence s"},
		{"42501", `new row violates row-level security policy for table "pglimit_token_bucket"`, mis, mis, "row-level security policy refuses this program's role on pglimit_token_bucket"},
		{"42501", "keine Berechtigung für Tabelle pglimit_token_bucket", mis, mis, "on pglimit's tables: `pglimit migrate grants`"},
		{"28P01", `password authentication failed for user "app"`, mis, mis, "correct the user and password"},
		{"28000", `no pg_hba.conf entry for host`, mis, mis, "pg_hba.conf"},
		{"3D000", `database "nowhere" does not exist`, mis, mis, "correct the database's name"},
		{"25006", "cannot execute INSERT in a read-only transaction", mis, mis, "read-only"},
		{"26000", `prepared statement "s" does not exist`, mis, mis, "default_query_exec_mode=exec"},
		{"42P05", `prepared statement "s" already exists`, mis, mis, "default_query_exec_mode=exec"},
		{"08P01", `bind message supplies 2 parameters, but prepared statement "" requires 3`, mis, mis, "binary_parameters=yes"},
		{"08P01", "no such database: nowhere", mis, mis, "the pooler refuses the login"},
		{"08P01", "unsupported startup parameter: search_path", mis, mis, "ignore_startup_parameters"},
		{"08P01", "server login has been failing, cached error: no such user (server_login_retry)", mis, mis, "the pooler refuses the login"},
		{"08P01", "insufficient data left in message", mis, mis, "correct what it names"},
		{"08P01", "query_wait_timeout", away, away, "query_wait_timeout"},
		{"08P01", "server conn crashed?", away, away, "crashed"},
		{"08P01", "server login has been failing, try again later (server_login_retry)", away, away, "server_login_retry"},
		{"08P01", "server login has been failing, cached error: connect failed (server_login_retry)", away, away, "connect failed"},
		{"08P01", "no more connections allowed (max_client_conn)", full, full, "max_client_conn"},
		{"0A000", "cached plan must not change result type", mis, retry, "cached plan"},
		{"0A000", "not supported", mis, mis, "PostgreSQL 13"},
		{"42601", "syntax error", mis, mis, "pglimit migrate status"},
		{"3F000", "schema does not exist", mis, mis, "pglimit migrate status"},
		{"42P01", "relation does not exist", not, not, "pglimit migrate up"},
		{"42703", "column does not exist", not, not, "pglimit migrate up"},
		{"42883", "function does not exist", not, not, "pglimit migrate up"},
		{"22P02", "invalid input syntax", invalid, invalid, "invalid"},
		{"22023", `role "gone" does not exist`, invalid, invalid, "gone"},
		{"40001", "could not serialize access", full, retry, "serialize"},
		{"40P01", "deadlock detected", full, retry, "deadlock"},
		{"55P03", "canceling statement due to lock timeout", full, retry, "lock timeout"},
		{"53300", "too many clients", full, full, "CONNECTION LIMIT"},
		{"53100", "could not extend file: No space left on device", away, away, "space"},
		{"57P01", "terminating connection", away, away, "terminating"},
		{"57P03", "the database system is starting up", away, away, "starting"},
		{"57014", "canceling statement", away, away, "canceling"},
		{"25P03", "terminating connection due to idle-in-transaction timeout", away, away, "idle"},
		{"25P04", "terminating connection due to transaction timeout", away, away, "transaction timeout"},
		{"40003", "statement completion unknown", away, away, "unknown"},
		{"08006", "connection to the remote node failed", away, away, "remote"},
		{"08004", "the server rejected the connection", mis, mis, "correct what it names"},
		{"25P02", "current transaction is aborted", mis, mis, "aborted"},
		{"55P02", "parameter cannot be changed without restarting the server", mis, mis, "correct what it names"},
		{"58P01", `could not access file "gone"`, mis, mis, "correct what it names"},
		{"57000", "operator intervention", mis, mis, "correct what it names"},
		{"XX000", "server closed the connection unexpectedly\ninvalid socket", away, away, "closed the connection"},
		{"XX000", "could not commit transaction for shard 102013 on at least one active node", away, away, "commit"},
		{"XX000", "failed to commit transaction on localhost:5433", away, away, "commit"},
		{"XX000", "could not find valid entry for shard 102009", away, away, "entry"},
		{"XX000", "cache lookup failed", mis, mis, "correct what it names"},
		{"P0001", "raised by a trigger", mis, mis, "correct what it names"},
		{"ZZ999", "of a server to come", mis, mis, "correct what it names"},
	} {
		for name, err := range map[string]error{
			"pgx":              fmt.Errorf("`database=timeout`: %w", &pgconn.PgError{Code: c.code, Message: c.message}),
			"pgx, batch":       fmt.Errorf("error preprocessing batch (prepare): %w", &pgconn.PgError{Code: c.code, Message: c.message}),
			"pgx, connects":    refusedConnect(c.code, c.message),
			"lib/pq":           &pqError{c.code, c.message},
			"lib/pq, connects": fmt.Errorf("%w: %w", sqldb.ErrConnect, &pqError{c.code, c.message}),
			"breaker":          fmt.Errorf("the circuit breaker is open: %w", &pqError{c.code, c.message}),
		} {
			for inTx, want := range map[bool][]error{false: c.alone, true: c.inTx} {
				says := c.says
				if strings.HasSuffix(name, "connects") && slices.Contains([]string{"invalid", "gone", "PostgreSQL 13", "pglimit migrate up", "pglimit migrate status"}, says) {
					want, says = mis, "correct what it names, in the database's URL" // no statement was sent
				}
				got := Translate(err, inTx)
				for _, kind := range all {
					if errors.Is(got, kind) != slices.Contains(want, kind) {
						t.Errorf("%s %s %s, in a transaction %v: is %q: %v, got %v", c.code, c.message, name, inTx, kind, errors.Is(got, kind), got)
					}
				}
				if !errors.Is(got, err) || !strings.Contains(got.Error(), says) {
					t.Errorf("%s %s, in a transaction %v: want %q in %v", c.code, name, inTx, says, got)
				}
				if says := strings.Contains(got.Error(), "the transaction has failed"); says != (inTx && (pooler.Lost(err) || c.code == "25P02")) {
					t.Errorf("%s, in a transaction %v: %v", c.code, inTx, got)
				}
				if again := Translate(got, inTx); again != got {
					t.Errorf("%s, translated again: %v", c.code, again)
				}
			}
		}
	}
}

// TestTranslateDriver: errors without an SQLSTATE.
func TestTranslateDriver(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	// connect connects through an application's functions.
	connect := func(lookup, dial error) error {
		c := must.OK(pgconn.ParseConfig("postgres://app@db/shop?sslmode=disable"))(t)
		c.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, lookup }
		c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, dial }
		_, err := pgconn.ConnectConfig(t.Context(), c)
		return err
	}
	for kind, all := range map[error][]error{
		store.ErrUnavailable: {
			io.EOF, io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded, os.ErrDeadlineExceeded, driver.ErrBadConn, sql.ErrConnDone, pgconn.ErrConnClosed,
			&net.DNSError{Name: "db", IsNotFound: true}, net.ErrClosed, &net.OpError{Op: "read", Err: syscall.ECONNRESET}, refused,
			errors.Join(errors.New("tls error: server refused TLS connection"), refused), connect(nil, errors.New("no tunnel")), connect(errors.New("no name server"), nil),
		},
		store.ErrMisconfigured: {
			errors.New("closed pool"), errors.New("server refused TLS connection"), &os.PathError{Err: syscall.ENOENT}, sql.ErrTxDone, pgx.ErrTxClosed, pgx.ErrNoRows, pgconn.ErrReadOnlyConnection,
			errors.New("simple protocol queries must be run with standard_conforming_strings=on"), errors.New("conn busy"),
			&net.OpError{Op: "remote error", Err: errors.New("tls: bad certificate")}, x509.UnknownAuthorityError{}, errors.New("a driver to come"),
		},
	} {
		for _, err := range all {
			got := Translate(fmt.Errorf("wrapped: %w", err), false)
			if !errors.Is(got, err) || !errors.Is(got, kind) || errors.Is(got, store.ErrUnavailable) == errors.Is(got, store.ErrMisconfigured) {
				t.Errorf("%v: got %v, want %v", err, got, kind)
			}
		}
	}
}
