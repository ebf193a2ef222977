package testworld

import (
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
)

// MigrationNames renders steps as "1 tables, 2 storage".
func MigrationNames(steps []migrate.Step) string {
	var all []string
	for _, s := range steps {
		all = append(all, fmt.Sprint(s.Version, " ", s.Name))
	}
	return strings.Join(all, ", ")
}

// AllUp are all migrations in the order of Up, and AllDown in the order of Down.
var AllUp, AllDown = Above(0), Below(0)

// Above renders the migrations above version, in the order of Up.
func Above(version int64) string { return strings.Join(Migrations(version), ", ") }

// Below renders the migrations above version, in the order of Down.
func Below(version int64) string {
	all := Migrations(version)
	slices.Reverse(all)
	return strings.Join(all, ", ")
}

// Migrations lists the migrations above version, in the order of Up, as "1 tables".
func Migrations(version int64) (all []string) {
	names, _ := fs.Glob(sets.Tables.FS(), "*.sql") // sorted; the pattern is valid
	for _, n := range names {
		number, name, _ := strings.Cut(strings.TrimSuffix(n, ".sql"), "_")
		if v, err := strconv.ParseInt(number, 10, 64); err != nil {
			panic(n)
		} else if v > version {
			all = append(all, fmt.Sprint(v, " ", name))
		}
	}
	return all
}

// Exported lists the files that Export writes when its first number is from.
func Exported(from int) (all []string) {
	for i, m := range Migrations(0) {
		_, name, _ := strings.Cut(m, " ")
		all = append(all, fmt.Sprintf("%05d_pglimit_%s.sql", from+i, name))
	}
	return all
}

// UpTo migrates up and checks what was done.
func UpTo(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := sets.Tables.UpTo(t.Context(), pool, to)
	if err != nil || MigrationNames(steps) != want {
		t.Fatalf("up to %d: ran %q, error %v; want %q", to, MigrationNames(steps), err, want)
	}
}

// StepsDown migrates down and checks what was undone.
func StepsDown(t *testing.T, pool *pgxpool.Pool, to int64, want string) {
	t.Helper()
	steps, err := sets.Tables.Down(t.Context(), pool, to)
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
	want := ""
	for _, m := range Migrations(0) {
		version, _, _ := strings.Cut(m, " ")
		want += " " + version
	}
	if got := Value[string](t, pool, `SELECT string_agg(' ' || version_id::text, '' ORDER BY version_id) FROM `+sets.Tables.VersionTable()+` WHERE version_id > 0`); got != want {
		t.Errorf("on record are %q, want %q", got, want)
	}
}

// WithSearchPath returns address with a search path for its sessions.
func WithSearchPath(t *testing.T, address, path string) string {
	t.Helper()
	return WithQuery(t, address, "search_path", path).String()
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
	u := parse(t, address)
	u.User = url.UserPassword(role, "limits")
	return u.String()
}

// RoleOf returns the role of a URL.
func RoleOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.User.Username()
}
