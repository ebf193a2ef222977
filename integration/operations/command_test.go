package operations

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
)

// TestDoctorCommand: exit codes, lines and JSON of pglimit doctor.
func TestDoctorCommand(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	run := func(want int, args ...string) string {
		t.Helper()
		code, stdout, stderr := testworld.Pglimit(t, address, append([]string{"doctor"}, args...)...)
		if code != want {
			t.Errorf("%q: exit code %d, want %d\n%s%s", args, code, want, stdout, stderr)
		}
		return stdout
	}
	if out := run(0, "--only", "tables,janitor", "--strict"); !strings.HasPrefix(out, "ok         tables   the tables are in schema public\nok         janitor  ") || !strings.Contains(out, "\n2 ok, in ") {
		t.Errorf("%q", out)
	}
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 3, testworld.Value[int64](t, pool, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 600000000`))
	if out := run(0, "--only", "janitor"); !strings.Contains(out, "warn       janitor  no sweep was ever completed; 3 due rows") || !strings.Contains(out, "\n                    fix: pglimit janitor --once\n                    next: run `pglimit janitor`") {
		t.Errorf("%q", out)
	}
	run(1, "--only", "janitor", "--strict")
	run(0, "--only", "tables,janitor", "--json")
	testworld.Exec(t, pool, "ALTER TABLE pglimit_token_bucket SET UNLOGGED")
	run(1, "--only", "unlogged")
	run(0, "--only", "unlogged", "--skip", "unlogged", "--strict")
	run(2, "--only", "everything")
	var report struct {
		Verdict doctor.Verdict
		doctor.Report
	}
	d := json.NewDecoder(strings.NewReader(run(1, "--json", "--skip", "durability")))
	d.DisallowUnknownFields()
	if err := d.Decode(&report); err != nil || report.Verdict != doctor.Fail || len(report.Checks) != len(doctor.Names())-1 || report.Took <= 0 {
		t.Errorf("%+v, %v", report, err)
	}
	if code, _, stderr := testworld.Pglimit(t, "postgres://nobody@127.0.0.1:1/none", "doctor"); code != 3 || !strings.Contains(stderr, "connect") {
		t.Errorf("no database: exit code %d, %q", code, stderr)
	}
}

// TestGrantsOfARole: a role without a flag is an operator, and then has all that the
// doctor asks for.
func TestGrantsOfARole(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	role := testworld.RuntimeRole(t, address)
	name := testworld.Value[string](t, testworld.Connect(t, role), "SELECT current_user")
	if code, out, _ := testworld.Pglimit(t, role, "doctor", "--only", "grants"); code != 1 || !strings.Contains(out, "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE ") || !strings.Contains(out, ", public.pglimit_keys, public.pglimit_balance_now, public.pglimit_goose_db_version TO ") {
		t.Errorf("exit code %d: %s", code, out)
	}
	code, short, _ := testworld.Pglimit(t, address, "migrate", "grants", name)
	code2, long, _ := testworld.Pglimit(t, address, "migrate", "grants", "--operator", name)
	if code+code2 != 0 || short != long || !strings.Contains(short, " TO "+name+";\n") {
		t.Errorf("exit codes %d, %d:\n%s\n%s", code, code2, short, long)
	}
	if code, _, stderr := testworld.Pglimit(t, address, "migrate", "grants", name, "--apply"); code != 0 {
		t.Error(stderr)
	}
	if code, out, _ := testworld.Pglimit(t, role, "doctor", "--strict", "--only", "tables,migrations,grants,janitor,policies"); code != 0 {
		t.Error(out)
	}
	if code, _, stderr := testworld.Pglimit(t, address, "migrate", "grants"); code != 2 || !strings.Contains(stderr, "no role is named") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
