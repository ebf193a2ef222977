package migrate

import (
	"net/url"
	"slices"
	"testing"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/migrations"
)

// TestMigrateRuntimeRole: rights on rows suffice for deciding, and for Up when an
// application starts and its tables exist.
func TestMigrateRuntimeRole(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	owner := bed.Connect(t, address)
	bed.Exec(t, owner, `REVOKE CREATE ON SCHEMA public FROM public`)
	role := bed.RuntimeRole(t, address)
	pool := bed.Connect(t, role)

	_, failed := bed.CallStatements(t.Context(), pool, bed.NamesEndingIn("Get"))
	if len(failed) < 7 {
		t.Errorf("without any right only these failed: %v", failed)
	}
	u, err := url.Parse(role)
	if err != nil {
		t.Fatal(err)
	}
	bed.Exec(t, owner, `GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO `+u.User.Username())
	called, failed := bed.CallStatements(t.Context(), pool, bed.EveryStatement)
	if len(failed) > 0 {
		t.Errorf("with rights to read and write rows these failed: %v", failed)
	}
	for _, kind := range []string{"Take", "TakeMany", "TakeAll", "Locked", "Charge", "Refund", "Get", "Block", "Unblock", "Reset", "Expire"} {
		if !slices.ContainsFunc(called, bed.NamesEndingIn(kind)) {
			t.Errorf("no statement %s among %q", kind, called)
		}
	}
	for _, table := range bed.LimitTables(t, pool) {
		bed.Exec(t, pool, `SELECT * FROM `+table+`_now`)
	}
	bed.UpTo(t, pool, migrations.Latest, "")
	if _, err := migrations.Status(t.Context(), pool); err != nil {
		t.Error(err)
	}
	if _, err := db.New().Clock(t.Context(), pool, nil); err != nil {
		t.Error(err)
	}
}
