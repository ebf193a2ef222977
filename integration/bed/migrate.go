package bed

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/migrations"
)

// MigrationNames renders steps as "1 tables, 2 storage".
func MigrationNames(steps []migrations.Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, fmt.Sprint(s.Version, " ", s.Name))
	}
	return strings.Join(all, ", ")
}

// AllUp are all migrations in the order of Up.
const AllUp = "1 tables, 2 storage, 3 views"

// AllDown are all migrations in the order of Down.
const AllDown = "3 views, 2 storage, 1 tables"

// UpTo migrates up and checks what was done.
func UpTo(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := migrations.UpTo(t.Context(), pool, to)
	if err != nil || MigrationNames(steps) != want {
		t.Fatalf("up to %d: ran %q, error %v; want %q", to, MigrationNames(steps), err, want)
	}
}

// StepsDown migrates down and checks what was undone.
func StepsDown(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := migrations.Down(t.Context(), pool, to)
	if err != nil || MigrationNames(steps) != want {
		t.Fatalf("down to %d: undid %q, error %v; want %q", to, MigrationNames(steps), err, want)
	}
}

// CheckMigratedOnce checks that the database equals a migrated one and that each migration
// is recorded once.
func CheckMigratedOnce(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if got, want := Schema(t, pool), Schema(t, NewPool(t)); got != want {
		t.Errorf("the schema is:\n%s\nwant:\n%s", got, want)
	}
	if got := Value[string](t, pool, `SELECT string_agg(version_id::text, ' ' ORDER BY version_id) FROM `+migrations.VersionTable+` WHERE version_id > 0`); got != "1 2 3" {
		t.Errorf("on record are %q, want 1 2 3", got)
	}
}

// WithSearchPath returns address with a search path for its sessions.
func WithSearchPath(t *testing.T, address, path string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", path)
	u.RawQuery = q.Encode()
	return u.String()
}

// RuntimeRole creates a role that may only log in, and returns a URL for it.
func RuntimeRole(t *testing.T, address string) string {
	t.Helper()
	owner := Connect(t, address)
	role := Value[string](t, owner, `SELECT 'pglimit_test_' || md5(random()::text || clock_timestamp())`)
	Exec(t, owner, `CREATE ROLE `+role+` LOGIN PASSWORD 'limits'`)
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
