package roles

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/migrate/sets"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/strangers"
)

// exposed renders what Strangers finds: "public: PUBLIC; more of alice".
func exposed(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	all := must.OK(strangers.Find(t.Context(), testworld.DB(t, pool), 0))(t)
	var text []string
	for _, e := range all {
		line := e.Schema
		if e.Owner != "" {
			line += " of " + e.Owner
		}
		if len(e.Creators) > 0 {
			line += ": " + strings.Join(e.Creators, ", ")
		}
		if e.Missing != "" {
			line += " in " + e.Missing
		}
		text = append(text, line)
	}
	return strings.Join(text, "; ")
}

// TestStrangers lists the roles that may create objects in the schemas of the search_path,
// as an ordinary role.
func TestStrangers(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	owner := testworld.Connect(t, address)
	mine := testworld.RuntimeRole(t, address)
	me, other, group, super := testworld.RoleOf(t, mine), testworld.RoleOf(t, testworld.RuntimeRole(t, address)), testworld.RoleOf(t, testworld.RuntimeRole(t, address)), testworld.RoleOf(t, testworld.RuntimeRole(t, address))
	database := testworld.Value[string](t, owner, `SELECT quote_ident(current_database())`)
	// Without USAGE a schema of the search_path is passed over.
	testworld.Exec(t, owner, fmt.Sprintf(`ALTER ROLE %s SUPERUSER; CREATE SCHEMA limits AUTHORIZATION %s; GRANT USAGE ON SCHEMA limits TO PUBLIC`, super, me))
	for _, c := range []struct{ path, change, want string }{
		{"limits", ``, ``},
		{"limits,public", ``, ``}, // a superuser's database
		{"limits,nowhere", `GRANT CREATE ON SCHEMA public TO PUBLIC`, ``},
		{"limits,public", ``, `public: PUBLIC`},
		{"public", `GRANT CREATE ON SCHEMA public TO ` + other, `public: PUBLIC, ` + other},
		{"public", `REVOKE CREATE ON SCHEMA public FROM PUBLIC`, `public: ` + other},
		{"public", `REVOKE CREATE ON SCHEMA public FROM ` + other, ``},
		{"public", `GRANT USAGE ON SCHEMA public TO PUBLIC`, ``},
		{"public", `GRANT CREATE ON SCHEMA public TO ` + super, ``},
		{"public", `GRANT CREATE ON SCHEMA public TO ` + me, ``},
		{"limits", `GRANT CREATE ON SCHEMA limits TO PUBLIC`, `limits: PUBLIC`},
		{"limits", `REVOKE CREATE ON SCHEMA limits FROM PUBLIC; ALTER SCHEMA limits OWNER TO ` + other, `limits of ` + other},
		{"limits", `ALTER SCHEMA limits OWNER TO ` + group, `limits of ` + group},
		{"limits", fmt.Sprintf(`GRANT %s TO %s`, group, me), ``}, // a group with this role as a member
		{"limits", fmt.Sprintf(`REVOKE %s FROM %s; GRANT %[2]s TO %[1]s`, group, me), ``},
		{"limits", `ALTER SCHEMA limits OWNER TO ` + super, ``},
		{"limits", `CREATE SCHEMA pglimit AUTHORIZATION ` + other + `; GRANT USAGE ON SCHEMA pglimit TO PUBLIC`, `pglimit of ` + other},
		{"pglimit,limits", `GRANT CREATE ON SCHEMA limits TO ` + other, `pglimit of ` + other + `; limits: ` + other},
		{"pglimit", `ALTER SCHEMA pglimit OWNER TO ` + me, ``},
		{"pglimit", `CREATE SCHEMA pglimit_ask AUTHORIZATION ` + me + `; GRANT CREATE ON SCHEMA pglimit_ask TO ` + other, `pglimit_ask: ` + other},
		{"pglimit", `DROP SCHEMA pglimit_ask`, ``},
		{`"$user",public`, `REVOKE CREATE ON SCHEMA limits FROM ` + other, ``},
		{`"$user",public`, fmt.Sprintf(`GRANT CREATE ON DATABASE %s TO %s, %s`, database, me, other), me + `: ` + other + ` in ` + database},
		{`"Not_yet",Nowhere,public`, ``, `"Not_yet": ` + other + ` in ` + database + `; nowhere: ` + other + ` in ` + database},
		{`public,nowhere`, ``, ``},
		{`"$user",public`, fmt.Sprintf(`REVOKE CREATE ON DATABASE %s FROM %s`, database, other), ``},
	} {
		if c.change != "" {
			testworld.Exec(t, owner, c.change)
		}
		if got := exposed(t, testworld.Connect(t, testworld.WithSearchPath(t, mine, c.path))); got != c.want {
			t.Errorf("search_path %s after %s: %q, want %q", c.path, c.change, got, c.want)
		}
	}
	// A superuser counts as a member of every role by its rights, but that shares no
	// schema.
	testworld.Exec(t, owner, fmt.Sprintf(`DROP SCHEMA pglimit; ALTER SCHEMA limits OWNER TO %s; CREATE SCHEMA "Other-One" AUTHORIZATION %[1]s`, other))
	if got, want := exposed(t, testworld.Connect(t, testworld.WithSearchPath(t, address, `limits,"Other-One"`))), `limits of `+other+`; "Other-One" of `+other; got != want {
		t.Errorf("as a superuser: %q, want %q", got, want)
	}
	if testworld.Value[int](t, owner, `SELECT current_setting('server_version_num')::int`) >= 140000 {
		testworld.Exec(t, owner, `ALTER SCHEMA public OWNER TO pg_database_owner`)
		for role, want := range map[string]string{me: "", other: "public of pg_database_owner", super: ""} {
			testworld.Exec(t, owner, `ALTER DATABASE `+database+` OWNER TO `+role)
			if got := exposed(t, testworld.Connect(t, testworld.WithSearchPath(t, mine, "public"))); got != want {
				t.Errorf("in a database of %s: %q, want %q", role, got, want)
			}
		}
		testworld.Exec(t, owner, `ALTER DATABASE `+database+` OWNER TO CURRENT_USER`)
	}
}

// TestStrangersAmongStrangers runs with all planted objects in the search_path.
func TestStrangersAmongStrangers(t *testing.T) {
	t.Parallel()
	address, aside := testworld.PlantedDatabase(t)
	testworld.Exec(t, testworld.Connect(t, aside), `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	if got := exposed(t, testworld.Connect(t, address)); got != "public: PUBLIC" {
		t.Errorf("found %q", got)
	}
	testworld.Exec(t, testworld.Connect(t, aside), `CREATE TABLE public.goose_db_version (id int PRIMARY KEY, version_id bigint, is_applied bool, tstamp timestamp DEFAULT '2026-05-17');
		INSERT INTO public.goose_db_version (id, version_id, is_applied) VALUES (1, 0, true), (2, 7, true), (3, 7, false), (4, 8, true); GRANT SELECT ON public.goose_db_version TO PUBLIC`)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, `DROP VIEW pglimit_keys; DELETE FROM pglimit_goose_db_version WHERE version_id = 8`)
	testworld.UpTo(t, pool, migrate.Latest, "7 keys, 8 programs")
	must.Succeed(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		all, err := sets.Tables.Present(t.Context(), tx)
		if len(all) == 0 || slices.ContainsFunc(all, func(p migrate.Presence) bool { return !p.Complete() && p.Name != "gcra" }) {
			t.Errorf("%+v", all)
		}
		return err
	}))
	records, err := migrate.Records(t.Context(), pool, "public.goose_db_version")
	if err != nil || len(records) != 1 || len(records[0].Versions) != 1 || records[0].Versions[0].Version != 8 {
		t.Errorf("%+v, %v", records, err)
	}
	if _, err := migrate.Records(t.Context(), pool, ""); err != nil {
		t.Error(err)
	}
}

// TestStrangersFunctionsAreRefused: SQL functions are not created where other roles may
// create objects, by any way of creating them. Existing ones stay.
func TestStrangersFunctionsAreRefused(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	for name, up := range map[string]func() error{
		"UpFunctions": func() error { return sets.Functions.Up(t.Context(), pool) },
		"UpTo":        func() error { _, err := sets.Functions.UpTo(t.Context(), pool, 1); return err },
		"pgx":         func() error { return sets.Functions.UpSQL(t.Context(), testworld.ConnectSQL(t, "pgx", address)) },
		"lib/pq":      func() error { return sets.Functions.UpSQL(t.Context(), testworld.ConnectSQL(t, "postgres", address)) },
	} {
		err := up()
		if !errors.Is(err, strangers.ErrExposed) || !strings.Contains(err.Error(), "run REVOKE CREATE ON SCHEMA public FROM PUBLIC, or") ||
			!strings.Contains(err.Error(), "CREATE SCHEMA limits") || !strings.Contains(err.Error(), "?search_path=limits") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := testworld.OwnSchema(t, pool); left != "" || testworld.Value[bool](t, pool, `SELECT to_regclass($1) IS NOT NULL`, sets.Functions.VersionTable()) {
		t.Errorf("a refusal left:\n%s", left)
	}
	if err := sets.Tables.Up(t.Context(), pool); err != nil {
		t.Errorf("Up of the tables: %v", err)
	}
	code, _, stderr := testworld.Pglimit(t, address, "migrate", "up", "--functions")
	if code != 3 || !strings.Contains(stderr, "REVOKE CREATE ON SCHEMA public FROM PUBLIC") || strings.Contains(stderr, "warning") {
		t.Errorf("migrate up --functions: exit code %d, stderr %q", code, stderr)
	}

	testworld.Exec(t, pool, `REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	must.Succeed(t, sets.Functions.UpSQL(t.Context(), testworld.ConnectSQL(t, "postgres", address)))
	testworld.Exec(t, pool, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	if err := sets.Functions.Up(t.Context(), pool); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	if code, stdout, stderr := testworld.Pglimit(t, address, "migrate", "up", "--functions"); code != 0 || stdout != "nothing to do\n" || !strings.Contains(stderr, "warning: PUBLIC may create objects in schema public: run REVOKE") {
		t.Errorf("with nothing to do: exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	if _, err := sets.Functions.Down(t.Context(), pool, 0); err != nil {
		t.Error(err)
	}
}

// TestMigrateWarns: the command creates the tables where other roles may create objects,
// and warns.
func TestMigrateWarns(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	pool := testworld.Connect(t, address)
	if _, _, stderr := testworld.Pglimit(t, address, "migrate", "up", "--to", "1"); strings.Contains(stderr, "warning") {
		t.Errorf("a database of ours: %s", stderr)
	}
	testworld.Exec(t, pool, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	code, stdout, stderr := testworld.Pglimit(t, address, "migrate", "up", "--to", "2")
	if code != 0 || !strings.HasPrefix(stdout, "up 00002 storage") || !strings.Contains(stderr, "warning: PUBLIC may create objects in schema public: run REVOKE CREATE ON SCHEMA public FROM PUBLIC, or") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	var m testworld.MigrateResult
	testworld.PglimitJSON(t, &m, address, "migrate", "up")
	if m.String() != "up: "+strings.Join(testworld.Migrations(2), " ") || len(m.Warnings) != 1 || !strings.Contains(m.Warnings[0], "CREATE SCHEMA limits") {
		t.Errorf("with --json: %+v", m)
	}
	var none testworld.MigrateResult
	testworld.PglimitJSON(t, &none, address, "migrate", "down", "--yes")
	if none.Warnings == nil || len(none.Warnings) > 0 {
		t.Errorf("down warns: %+v", none)
	}
	testworld.Exec(t, pool, `CREATE SCHEMA limits`)
	if code, _, stderr := testworld.Pglimit(t, testworld.WithSearchPath(t, address, "limits"), "migrate", "up"); code != 0 || strings.Contains(stderr, "warning") {
		t.Errorf("in a separate schema: exit code %d, stderr %q", code, stderr)
	}
}
