package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/internal/pooler"
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
// transaction, whichever driver returned it.
func TestTranslate(t *testing.T) {
	all := []error{store.ErrInvalid, store.ErrOverloaded, store.ErrUnavailable, store.ErrMisconfigured, store.ErrNotMigrated, store.ErrRetryTx}
	mis, not := []error{store.ErrMisconfigured}, []error{store.ErrMisconfigured, store.ErrNotMigrated}
	away, retry := []error{store.ErrUnavailable}, []error{store.ErrRetryTx}
	for _, c := range []struct {
		code, message string
		alone, inTx   []error
		says          string
	}{
		{"42501", "permission denied for table pglimit_gcra", mis, mis, "SELECT, INSERT, UPDATE and DELETE on pglimit_gcra: `pglimit migrate grants`"},
		{"42501", "permission denied for schema limits", mis, mis, "USAGE on schema limits"},
		{"42501", `permission denied for database "shop"`, mis, mis, "CONNECT on database shop"},
		{"42501", "permission denied for function f", mis, mis, "EXECUTE on function f"},
		{"42501", "permission denied for sequence s", mis, mis, "use sequence s"},
		{"42501", `new row violates row-level security policy for table "pglimit_gcra"`, mis, mis, "row-level security policy refuses this program's role on pglimit_gcra"},
		{"42501", "keine Berechtigung für Tabelle pglimit_gcra", mis, mis, "on pglimit's tables: `pglimit migrate grants`"},
		{"28P01", `password authentication failed for user "app"`, mis, mis, "correct the user and password"},
		{"28000", `no pg_hba.conf entry for host`, mis, mis, "pg_hba.conf"},
		{"3D000", `database "nowhere" does not exist`, mis, mis, "correct the database's name"},
		{"25006", "cannot execute INSERT in a read-only transaction", mis, mis, "read-only"},
		{"26000", `prepared statement "s" does not exist`, mis, mis, "default_query_exec_mode=exec"},
		{"42P05", `prepared statement "s" already exists`, mis, mis, "default_query_exec_mode=exec"},
		{"08P01", `bind message supplies 2 parameters, but prepared statement "" requires 3`, mis, mis, "binary_parameters=yes"},
		{"08P01", "no such database: nowhere", mis, mis, "the pooler refuses the login"},
		{"08P01", "unsupported startup parameter: search_path", mis, mis, "ignore_startup_parameters"},
		{"08P01", "query_wait_timeout", away, away, "query_wait_timeout"},
		{"0A000", "cached plan must not change result type", mis, retry, "cached plan"},
		{"0A000", "not supported", mis, mis, "PostgreSQL 13"},
		{"42601", "syntax error", mis, mis, "pglimit migrate status"},
		{"3F000", "schema does not exist", mis, mis, "pglimit migrate status"},
		{"42P01", "relation does not exist", not, not, "pglimit migrate up"},
		{"42703", "column does not exist", not, not, "pglimit migrate up"},
		{"42883", "function does not exist", not, not, "pglimit migrate up"},
		{"22P02", "invalid input syntax", []error{store.ErrInvalid}, []error{store.ErrInvalid}, "invalid"},
		{"40001", "could not serialize access", away, retry, "serialize"},
		{"40P01", "deadlock detected", away, retry, "deadlock"},
		{"53300", "too many clients", []error{store.ErrOverloaded}, []error{store.ErrOverloaded}, "CONNECTION LIMIT"},
		{"57P01", "terminating connection", away, away, "terminating"},
		{"57P03", "the database system is starting up", away, away, "starting"},
		{"57014", "canceling statement", away, away, "canceling"},
	} {
		for name, err := range map[string]error{
			"pgx":           fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: c.code, Message: c.message}),
			"pgx, batch":    fmt.Errorf("error preprocessing batch (prepare): %w", &pgconn.PgError{Code: c.code, Message: c.message}),
			"pgx, connects": refusedConnect(c.code, c.message),
			"lib/pq":        &pqError{c.code, c.message},
			"breaker":       fmt.Errorf("the circuit breaker is open: %w", &pqError{c.code, c.message}),
		} {
			for inTx, want := range map[bool][]error{false: c.alone, true: c.inTx} {
				got := Translate(err, inTx)
				for _, kind := range all {
					expected := false
					for _, w := range want {
						expected = expected || kind == w
					}
					if errors.Is(got, kind) != expected {
						t.Errorf("%s %s, in a transaction %v: is %q: %v, got %v", c.code, name, inTx, kind, !expected, got)
					}
				}
				if !errors.Is(got, err) || !strings.Contains(got.Error(), c.says) {
					t.Errorf("%s %s, in a transaction %v: want %q in %v", c.code, name, inTx, c.says, got)
				}
				if says := strings.Contains(got.Error(), "the transaction has failed"); says != (inTx && pooler.Lost(err)) {
					t.Errorf("%s, in a transaction %v: %v", c.code, inTx, got)
				}
			}
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, context.DeadlineExceeded, errors.New("closed pool")} {
		if got := Translate(err, false); !errors.Is(got, store.ErrUnavailable) || errors.Is(got, store.ErrMisconfigured) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
