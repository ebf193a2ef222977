package tx

import (
	"errors"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestMigrateUpSQL makes the tables over each driver, on one connection, which stays open, and
// makes a lost record again.
func TestMigrateUpSQL(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		address := testworld.EmptyDatabase(t)
		db := testworld.ConnectSQL(t, driver, address)
		db.SetMaxOpenConns(1)
		l := testworld.NewSQL(t, db, nil)
		p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}
		if _, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, limiter.ErrNotMigrated) {
			t.Errorf("before: %v", err)
		}
		for range 2 {
			must.Succeed(t, sets.Tables.UpSQL(t.Context(), db))
		}
		if r := testworld.Must(t)(l.Allow(t.Context(), p, "k")); !r.Allowed {
			t.Errorf("%+v", r)
		}
		must.OK(db.Exec("DELETE FROM " + sets.Tables.VersionTable() + " WHERE version_id > 0"))(t)
		if err := sets.Tables.UpSQL(t.Context(), db); err != nil {
			t.Error("with a lost record:", err)
		}
		all := must.OK(sets.Tables.Status(t.Context(), testworld.DB(t, testworld.Connect(t, address))))(t)
		for _, m := range all {
			if !m.Applied {
				t.Errorf("%d %s has not been run", m.Version, m.Name)
			}
		}
		if r := testworld.Must(t)(l.Allow(t.Context(), p, "k")); r.Allowed {
			t.Errorf("the count did not stay: %+v", r)
		}
	})
}
