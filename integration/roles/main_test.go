// Package roles tests what roles may do over a real PostgreSQL server: the rights of askers
// and operators, and schemas where other roles may create functions and operators.
package roles

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/grants"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// site is a database with the tables in schema limits, which an ordinary role owns, the
// SQL functions, and two roles without rights.
type site struct {
	super, owner, asker, operator *pgxpool.Pool

	superURL, ownerURL, askerURL, operatorURL string
	roles                                     grants.Roles
}

func newSite(t *testing.T) *site {
	t.Helper()
	address := testworld.EmptyDatabase(t)
	s := &site{super: testworld.Connect(t, address), superURL: address}
	testworld.Exec(t, s.super, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	s.ownerURL = testworld.WithSearchPath(t, testworld.RuntimeRole(t, address), "limits")
	s.askerURL, s.operatorURL = testworld.RuntimeRole(t, address), testworld.WithSearchPath(t, testworld.RuntimeRole(t, address), "limits")
	testworld.Exec(t, s.super, fmt.Sprintf(`DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %%I TO %s', current_database()); END $$; CREATE SCHEMA limits AUTHORIZATION %[1]s`, testworld.RoleOf(t, s.ownerURL)))
	s.owner, s.asker, s.operator = testworld.Connect(t, s.ownerURL), testworld.Connect(t, s.askerURL), testworld.Connect(t, s.operatorURL)
	testworld.UpTo(t, s.owner, migrate.Latest, testworld.AllUp)
	must.Succeed(t, sets.Functions.Up(t.Context(), s.owner))
	s.roles = grants.Roles{Askers: []string{testworld.RoleOf(t, s.askerURL)}, Operators: []string{testworld.RoleOf(t, s.operatorURL)}}
	return s
}

// granted is a site with applied grants and a policy for each algorithm, of 10 units an
// hour. The policy is named after its algorithm.
func granted(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	must.OK(grants.Apply(t.Context(), s.owner, s.roles))(t)
	for _, a := range algorithms {
		testworld.Exec(t, s.operator, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, askers) VALUES ($1, $1, 10, 3600, true)`, a)
	}
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('operators', 'gcra', 10, 3600)`)
	return s
}

var algorithms = []string{"leaky_bucket", "leaky_bucket_queue", "token_bucket", "gcra", "fixed_window", "sliding_window_counter", "sliding_window_log"}

// try runs a statement in a transaction that is rolled back, and returns its SQLSTATE:
// empty if it succeeded.
func try(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (code string, err error) {
	t.Helper()
	undo := errors.New("undo")
	err = pgx.BeginFunc(context.WithoutCancel(t.Context()), pool, func(tx pgx.Tx) error {
		if len(args) == 0 { // several statements
			args = []any{pgx.QueryExecModeSimpleProtocol}
		}
		if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
			return err
		}
		return undo
	})
	if errors.Is(err, undo) {
		return "", nil
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code, err
	}
	return "not an answer", err
}

// wants checks a SQLSTATE.
func wants(t *testing.T, pool *pgxpool.Pool, code, sql string, args ...any) {
	t.Helper()
	if got, err := try(t, pool, sql, args...); got != code {
		t.Errorf("%s: %q, %v; want %q", sql, got, err, code)
	}
}
