package integration

import (
	"context"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/migrations"
)

// runtimeRole makes a role that may log in and nothing else, and returns a URL
// that does so.
func runtimeRole(t *testing.T, address string) string {
	t.Helper()
	owner := connect(t, address)
	role := one[string](t, owner, `SELECT 'pglimit_test_' || md5(random()::text || clock_timestamp())`)
	exec(t, owner, `CREATE ROLE `+role+` LOGIN PASSWORD 'limits'`)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, address)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "limits")
	return u.String()
}

// TestRuntimeRole: reading and writing rows is all that deciding takes, and Up
// at the start of an application whose tables are there takes no more.
func TestRuntimeRole(t *testing.T) {
	t.Parallel()
	address := newDatabase(t)
	owner := connect(t, address)
	exec(t, owner, `REVOKE CREATE ON SCHEMA public FROM public`)
	role := runtimeRole(t, address)
	pool := connect(t, role)

	_, failed := callStatements(t.Context(), pool, suffix("Get"))
	if len(failed) < 7 {
		t.Errorf("without any right only these failed: %v", failed)
	}
	u, err := url.Parse(role)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, owner, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO `+u.User.Username())
	called, failed := callStatements(t.Context(), pool, every)
	if len(failed) > 0 {
		t.Errorf("with rights to read and write rows these failed: %v", failed)
	}
	for _, kind := range []string{"Take", "TakeMany", "Held", "Fill", "Refund", "Get", "Block", "Unblock", "Reset", "Expire"} {
		if !slices.ContainsFunc(called, suffix(kind)) {
			t.Errorf("no statement %s among %q", kind, called)
		}
	}
	for _, table := range limitTables(t, pool) {
		exec(t, pool, `SELECT * FROM `+table+`_now`)
	}
	upTo(t, pool, migrations.Latest, "")
	if _, err := migrations.Status(t.Context(), pool); err != nil {
		t.Error(err)
	}
	if _, err := db.New().Clock(t.Context(), pool, nil); err != nil {
		t.Error(err)
	}
}
