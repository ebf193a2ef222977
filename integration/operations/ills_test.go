package operations

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// ward is a database as docs/production.md sets it up: an owner migrates, and an app runs.
type ward struct {
	root, owner, app string // addresses
	names            *strings.Replacer
}

// newWard sets a database up in which the doctor of the app says only ok.
func newWard(t *testing.T) ward {
	t.Helper()
	root := testworld.EmptyDatabase(t)
	w := ward{root: testworld.WithSearchPath(t, root, "limits"), owner: testworld.RuntimeRole(t, root), app: testworld.RuntimeRole(t, root)}
	other := testworld.RoleOf(t, testworld.RuntimeRole(t, root))
	database := testworld.Value[string](t, testworld.Connect(t, root), "SELECT quote_ident(current_database())")
	w.names = strings.NewReplacer("$owner", testworld.RoleOf(t, w.owner), "$app", testworld.RoleOf(t, w.app), "$other", other, "$database", database)
	w.run(t, root, `GRANT CREATE ON DATABASE $database TO $owner; CREATE SCHEMA limits AUTHORIZATION $owner; REVOKE CREATE ON SCHEMA public FROM PUBLIC;
		ALTER ROLE $owner IN DATABASE $database SET search_path = limits; ALTER ROLE $app IN DATABASE $database SET search_path = limits;
		GRANT pg_read_all_stats TO $app`)
	for _, line := range []string{"pglimit migrate up", "pglimit migrate up --functions", "pglimit migrate grants $app --apply"} {
		w.run(t, w.owner, line)
	}
	if found := w.examine(t); len(found) > 0 {
		t.Fatalf("a healthy database: %+v", found)
	}
	return w
}

// run runs a line of SQL or shell, as it is typed, in a new session of an address.
func (w ward) run(t *testing.T, address, line string) {
	t.Helper()
	paste(t, address, w.names.Replace(line))
}

// paste runs a fix as it is, in a new session or shell.
func paste(t *testing.T, address, fix string) {
	t.Helper()
	if call, ok := strings.CutPrefix(fix, "pglimit "); ok {
		if code, _, stderr := testworld.Pglimit(t, address, words(call)...); code != 0 {
			t.Fatalf("%s: exit code %d: %s", fix, code, stderr)
		}
		return
	}
	conn := testworld.ConnectOnce(t, address)
	for statement := range strings.SplitSeq(fix, ";") {
		if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%q: %v", statement, err)
		}
	}
	must.Succeed(t, conn.Close(t.Context()))
}

// finding is a line of the doctor that is not ok, with its fix.
type finding struct{ line, fix, as, next string }

var (
	verdictLine = regexp.MustCompile(`^(fail|warn|unchecked) +(\S+ +\S.*)$`)
	fixLine     = regexp.MustCompile(`^ +fix(?:, as (.*?))?: (.*)$`)
	nextLine    = regexp.MustCompile(`^ +next: (.*)$`)
)

// examine runs the command as the app, and reads what it prints up to the first ok. The
// shared server runs without fsync, and its tests take its connections.
func (w ward) examine(t *testing.T) (all []finding) {
	t.Helper()
	code, stdout, stderr := testworld.Pglimit(t, w.app, "doctor", "--timeout", "1m", "--skip", "durability,connections")
	if code > 1 {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for line := range strings.Lines(stdout) {
		line = strings.TrimSuffix(line, "\n")
		if m := verdictLine.FindStringSubmatch(line); m != nil {
			all = append(all, finding{line: m[1] + " " + strings.Join(strings.Fields(m[2]), " ")})
		} else if m := fixLine.FindStringSubmatch(line); m != nil {
			all[len(all)-1].as, all[len(all)-1].fix = m[1], m[2]
		} else if m := nextLine.FindStringSubmatch(line); m != nil {
			all[len(all)-1].next = m[1]
		}
	}
	return all
}

// address is that of whom a fix names.
func (w ward) address(as string) string {
	switch {
	case as == "":
		return w.app
	case as == "a superuser":
		return w.root
	}
	return w.owner
}

// program is SQL that lists a program.
func program(version, seen string) string {
	return `INSERT INTO limits.pglimit_program VALUES (` + version + `, 7, 120, now() - interval '1 hour', ` + seen + `, 'one''s', 'shop', 'web', 'v1', '[]')`
}

// TestDoctorLocks: a row that a forgotten transaction has locked is found, with the session
// that waits for it, also by a role that may not see what sessions do. The fix ends it.
func TestDoctorLocks(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.run(t, w.app, "pglimit allow --algorithm gcra --limit 10 k")
	const lock = "SELECT FROM pglimit_token_bucket WHERE key = 'k' FOR UPDATE"
	for _, sees := range []string{"GRANT pg_read_all_stats TO $app", "REVOKE pg_read_all_stats FROM $app"} {
		w.run(t, w.root, sees)
		forgotten := testworld.Begin(t, testworld.Connect(t, w.root, testworld.Setting("application_name", "report")), pgx.TxOptions{})
		must.OK(forgotten.Exec(t.Context(), lock))(t)
		waited := make(chan error, 1)
		shop := testworld.Connect(t, w.app, testworld.Setting("application_name", "shop"))
		go func() {
			_, err := shop.Exec(t.Context(), lock)
			waited <- err
		}()
		root := testworld.Connect(t, w.root)
		testworld.Eventually(t, "a session waits", func(context.Context) (bool, error) {
			return testworld.Value[bool](t, root, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'shop' AND wait_event_type = 'Lock' AND datname = current_database())`), nil
		})
		found := w.examine(t)
		if len(found) == 0 || !strings.HasPrefix(found[0].line, "warn locks pid ") || !strings.Contains(found[0].line, `application "report"`) ||
			!strings.Contains(found[0].line, `has locked rows of limits.pglimit_token_bucket; 1 session waits for it: pid `) || !strings.Contains(found[0].line, `application "shop"`) ||
			!strings.HasPrefix(found[0].fix, "SELECT pg_terminate_backend(") || found[0].as != "a superuser" {
			t.Fatalf("%+v", found)
		}
		t.Logf("%s\n  fix: %s", found[0].line, found[0].fix)
		w.run(t, w.root, found[0].fix)
		if err := <-waited; err != nil {
			t.Errorf("the session that waited: %v", err)
		}
		if found := w.examine(t); len(found) > 0 && !strings.HasPrefix(found[0].line, "unchecked snapshots ") {
			t.Errorf("after the fix: %+v", found)
		}
	}
}

// TestDoctorIlls: SQL or a command makes a healthy database ill in one way, and the doctor
// has one finding, whatever else fails for that reason. Its fix, pasted as it is, mends that;
// at the end all is ok again.
func TestDoctorIlls(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	type step struct{ line, fix string }
	const grants, up = "as role $owner: pglimit migrate grants $app --apply", "as role $owner: pglimit migrate up"
	for _, c := range []struct {
		break_ string
		steps  []step
		mend   string // of what no line of the doctor mends
	}{
		{"ALTER ROLE $app IN DATABASE $database RESET search_path", []step{
			{"fail tables the tables are in schema limits, which is not in the search_path (public)", `ALTER ROLE $app IN DATABASE $database SET search_path = "$user", public, limits`}}, ""},
		{"REVOKE USAGE ON SCHEMA limits FROM $app", []step{
			{"fail tables the tables are in schema limits, which is not open to role $app", "as the owner of the tables: pglimit migrate grants $app --apply"}}, ""},
		{"REVOKE SELECT ON limits.pglimit_keys, limits.pglimit_goose_db_version FROM $app", []step{
			{"warn grants role $app may decide, and lacks rights that the command needs", grants}}, ""},
		{"REVOKE UPDATE ON limits.pglimit_token_bucket FROM $app", []step{{"fail grants role $app lacks rights that the library", grants}}, ""},
		{"REVOKE ALL ON ALL TABLES IN SCHEMA limits FROM $app", []step{{"fail grants role $app lacks rights that the library", grants}}, ""},
		{"pglimit migrate down --to 7 --yes", []step{{"fail migrations 9 of this release's", "as role $owner: pglimit migrate up"}, {"fail grants", grants}}, ""},
		{"pglimit migrate down --functions --yes", []step{{"fail functions 1 of this release's", "as role $owner: pglimit migrate up --functions"}}, ""},
		{"DROP VIEW limits.pglimit_keys", []step{{"fail migrations all 16 migrations have run, and something of this release is missing or changed: pglimit_keys missing", up}, {"warn grants", grants}}, ""},
		{"DROP TABLE limits.pglimit_leaky_bucket CASCADE", []step{{"fail migrations", up}, {"fail grants", grants}}, ""},
		{"DROP TABLE limits.pglimit_policy_version", []step{{"fail migrations", up}, {"fail grants", grants}}, ""},
		{"DROP TABLE limits.pglimit_token_bucket CASCADE", []step{{"fail tables no schema of the search_path", "as the role that migrates: pglimit migrate up"}, {"fail grants", grants}}, ""},
		{"DELETE FROM limits.pglimit_goose_db_version WHERE version_id IN (3, 8)", []step{{"fail migrations 2 of this release's 16 migrations have not run: 00003 views, 00008 programs", up}}, ""},
		{"DELETE FROM limits.pglimit_goose_db_version; DROP INDEX limits.pglimit_token_bucket_expires", []step{{"fail migrations 16 of", up}}, ""},
		{"ALTER TABLE limits.pglimit_policy DISABLE TRIGGER pglimit_policy_stamp", []step{{"fail migrations", up}}, ""},
		{"ALTER TABLE limits.pglimit_token_bucket DROP CONSTRAINT pglimit_token_bucket_pkey", []step{{"fail migrations", up}}, ""},
		{"DROP FUNCTION pglimit.allow; ALTER FUNCTION pglimit._retry COST 7 STABLE", []step{{"fail functions all 2 migrations", "as role $owner: pglimit migrate up --functions"}}, ""},
		{"ALTER DATABASE $database SET default_transaction_read_only = on", []step{
			{"fail primary default_transaction_read_only is on: every decision is refused", "BEGIN READ WRITE; ALTER ROLE $app IN DATABASE $database SET default_transaction_read_only = off; COMMIT"}}, ""},
		{"BEGIN READ WRITE; ALTER DATABASE $database RESET default_transaction_read_only; ALTER DATABASE $database SET default_transaction_isolation = serializable; COMMIT", []step{
			{"warn isolation default_transaction_isolation is serializable", "ALTER ROLE $app IN DATABASE $database SET default_transaction_isolation = 'read committed'"}}, ""},
		{"ALTER DATABASE $database SET client_encoding = 'LATIN1'", []step{
			{"fail encoding client_encoding is LATIN1: programs with pgx decide nothing", "ALTER ROLE $app IN DATABASE $database SET client_encoding = 'UTF8'"}}, ""},
		{"ALTER DATABASE $database SET statement_timeout = '900ms'; ALTER DATABASE $database SET lock_timeout = '999ms'", []step{
			{"warn timeouts 2 timeouts of this role", "ALTER ROLE $app IN DATABASE $database SET statement_timeout = '5s'; ALTER ROLE $app IN DATABASE $database SET lock_timeout = '5s'"}}, ""},
		{"GRANT CREATE ON SCHEMA limits TO PUBLIC, $other", []step{
			{"warn schemas other roles may create objects in 1 of the schemas", "as a superuser: REVOKE CREATE ON SCHEMA limits FROM PUBLIC, $other"}}, ""},
		{"ALTER SCHEMA limits OWNER TO $other", []step{{"warn schemas", "as a superuser: ALTER SCHEMA limits OWNER TO $owner"}}, ""},
		{"ALTER SCHEMA pglimit OWNER TO $other", []step{{"warn schemas", "as a superuser: ALTER SCHEMA pglimit OWNER TO $owner"}}, ""},
		{"ALTER ROLE $app IN DATABASE $database SET search_path = extra, limits; GRANT CREATE ON DATABASE $database TO $other", []step{
			{"warn schemas", "as a superuser: REVOKE CREATE ON DATABASE $database FROM $other"}}, ""},
		{"ALTER TABLE limits.pglimit_fixed_window SET UNLOGGED; ALTER TABLE limits.pglimit_lease SET UNLOGGED", []step{
			{"fail unlogged 2 tables are not logged", "as role $owner: ALTER TABLE limits.pglimit_fixed_window SET LOGGED; ALTER TABLE limits.pglimit_lease SET LOGGED"}}, ""},
		{"ALTER TABLE limits.pglimit_token_bucket SET (autovacuum_enabled = false)", []step{
			{"fail autovacuum dead rows stay: autovacuum is off for limits.pglimit_token_bucket", "as role $owner: ALTER TABLE limits.pglimit_token_bucket RESET (autovacuum_enabled)"}}, ""},
		{"DELETE FROM limits.pglimit_policy_version", []step{
			{"fail policies limits.pglimit_policy_version has 0 rows", "INSERT INTO limits.pglimit_policy_version (version) SELECT coalesce(max(version), 0) FROM limits.pglimit_policy_history"}}, ""},
		{"REVOKE pg_read_all_stats FROM $app", []step{
			{"unchecked snapshots no transaction is older than 1m of this role's sessions", "as a superuser: GRANT pg_read_all_stats TO $app"}}, ""},
		{"ALTER TABLE limits.pglimit_token_bucket ENABLE ROW LEVEL SECURITY", []step{
			{"fail decision a trial decision of token_bucket failed: ", ""}}, "ALTER TABLE limits.pglimit_token_bucket DISABLE ROW LEVEL SECURITY"},
		{"pglimit allow --algorithm gcra --limit 10 k", nil, ""},
		{"UPDATE limits.pglimit_token_bucket SET expires_at_us = 1", []step{
			{"fail janitor no sweep was ever completed; 1 due rows", "pglimit janitor --once"}}, ""},
		{program("0", "now() - interval '10 minutes'"), []step{
			{"warn programs 1 of 1 programs do not follow the policies: shop on web, pid 7, was seen 10m", "DELETE FROM limits.pglimit_program WHERE instance = 'one''s'"}}, ""},
		{program("-1", "now()"), []step{{"warn programs 1 of 1 programs do not follow the policies: shop on web, pid 7, decides by version -1", ""}}, "DELETE FROM limits.pglimit_program"},
		{"DROP SCHEMA pglimit, pglimit_ask CASCADE; DROP SCHEMA limits CASCADE; CREATE SCHEMA limits AUTHORIZATION $owner; GRANT USAGE ON SCHEMA limits TO $app", []step{
			{"fail tables no schema of the search_path (limits) has pglimit's tables", "as the role that migrates: pglimit migrate up"}, {"fail grants", grants}}, ""},
	} {
		address := w.root
		if strings.HasPrefix(c.break_, "pglimit ") {
			address = w.owner
		}
		w.run(t, address, c.break_)
		for _, s := range c.steps {
			found := w.examine(t)
			others := slices.DeleteFunc(slices.Clone(found), func(f finding) bool { return strings.HasPrefix(f.line, "unchecked ") })
			if len(found) == 0 || len(others) > 1 || len(found) > 2 {
				t.Fatalf("%s: one finding, and what it hides: %+v", c.break_, found)
			}
			got := found[0]
			line, fix := w.names.Replace(s.line), w.names.Replace(s.fix)
			if got.as != "" {
				got.fix = "as " + got.as + ": " + got.fix
			}
			if !strings.HasPrefix(got.line, line) || got.fix != fix || got.fix+got.next == "" {
				t.Errorf("%s: %+v, want %s, fix %s", c.break_, got, line, fix)
			}
			t.Logf("%s\n  fix: %s\n  next: %s", got.line, got.fix, got.next)
			if fix == "" {
				w.run(t, w.root, c.mend)
				continue
			}
			w.run(t, w.address(found[0].as), found[0].fix)
		}
		if found := w.examine(t); len(found) > 0 {
			t.Fatalf("after %s and its fix: %+v", c.break_, found)
		}
	}
	for _, line := range []string{"pglimit top --once", "pglimit migrate status", "pglimit override list"} {
		w.run(t, w.app, line)
	}
}
func TestDoctorConnections(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	roleAddress := testworld.RuntimeRole(t, address)
	owner, role, name := testworld.Connect(t, address), testworld.Connect(t, roleAddress, testworld.FourConnections), testworld.RoleOf(t, roleAddress)
	testworld.Exec(t, role, "SELECT") // opens one connection
	expect(t, role, "connections", doctor.OK, "connections are in use")
	limit := func(sql string) {
		t.Helper()
		testworld.Eventually(t, "the doctor's connections have ended", func(context.Context) (bool, error) { // the server counts them until their processes have
			return testworld.Value[int](t, owner, "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", name) == 1, nil
		})
		testworld.Exec(t, owner, sql, pgx.QueryExecModeSimpleProtocol)
	}
	limit("ALTER ROLE " + name + " CONNECTION LIMIT 2") // one of the pool, one of the doctor
	expect(t, role, "connections", doctor.Fail, "2 of 2 connections", "the role's CONNECTION LIMIT", "this pool opens up to 4")
	limit("ALTER ROLE " + name + " CONNECTION LIMIT -1; DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 4', current_database()); END $$")
	if c := find(t, role, "connections"); c.Verdict == doctor.OK || !says(c, "the database's CONNECTION LIMIT") {
		t.Errorf("%+v", c)
	}
}

// TestDoctorClientSettings: a setting of the connection string is not the role's.
func TestDoctorClientSettings(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	expect(t, testworld.Connect(t, address, testworld.Setting("lock_timeout", "0")), "timeouts", doctor.OK) // none
	own := testworld.Connect(t, address, testworld.Setting("default_transaction_isolation", "repeatable read"))
	expect(t, own, "isolation", doctor.Warn, "repeatable read", "ErrRetryTx", "remove default_transaction_isolation from the connection string")
	short := testworld.Connect(t, address, testworld.Setting("statement_timeout", "1")) // which ends what the doctor reads too
	expect(t, short, "timeouts", doctor.Fail, "statement_timeout is 1 ms", "SET statement_timeout = '5s'; ALTER ROLE ", "remove it from the connection string too")
}

func TestDoctorClock(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	expect(t, pool, "clock", doctor.OK, "give or take")
	late := doctor.Config{Now: func() time.Time { return time.Now().Add(time.Minute) }}
	expectIn(t, find(t, pool, "clock", late), doctor.Warn, "behind this program's", "NTP")
}
