package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestPrograms: programs are listed with the version of the policies that they have, and a
// policy that only programs know begins with the default of the one seen last.
func TestPrograms(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	run := func(wantCode int, args ...string) string {
		t.Helper()
		code, stdout, stderr := testworld.Pglimit(t, address, args...)
		if code != wantCode {
			t.Fatalf("%q: exit code %d, stdout %q, stderr %q; want %d", args, code, stdout, stderr, wantCode)
		}
		return stdout + stderr
	}
	contains := func(text string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), p) {
				t.Errorf("no %q in:\n%s", p, text)
			}
		}
	}
	contains(run(0, "programs"), "no program was seen")
	list := func(name string, version int, ago time.Duration, defaults ...limiter.Policy) {
		t.Helper()
		text := must.OK(json.Marshal(append([]limiter.Policy{}, defaults...)))(t)
		testworld.Exec(t, pool, `INSERT INTO pglimit_program (policies_version, pid, heartbeat_s, started_at, seen_at, instance, name, host, library, defaults)
			SELECT $1, 7, 120, now() - '3 days'::interval, now() - $2::float8 * '1 second'::interval, $3, $3, 'host-' || $3, 'v0.1.0', $4`,
			version, ago.Seconds(), name, string(text))
	}
	run(0, "policy", "set", "stored", "--limit", "1", "--period", "1m") // version 1
	hourly := limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	older := hourly
	older.Limit = 10
	stored := limiter.Policy{Name: "stored", Algorithm: limiter.GCRA, Limit: 9, Period: time.Hour}
	list("old", 0, 30*time.Minute, older)
	list("web", 1, 3*time.Minute, hourly, stored)
	list("worker", 0, 4*time.Minute, hourly)
	testworld.Exec(t, pool, `UPDATE pglimit_program SET defaults = '[{"name": "api", "limit": 3, "unheard_of": 1}]' WHERE instance = 'worker'`)
	programs := run(0, "programs")
	contains(programs, "old host-old 7 v0.1.0", "0 silent 1", "1 current 2", "0 behind 0", "the policies have version 1", "worker on host-worker", "cannot read them")
	testworld.Exec(t, pool, `UPDATE pglimit_program AS w SET defaults = '[{"name": "api", "algorithm": "gcra", "limit": 100, "period": "1h"}]' WHERE instance = 'worker'`)

	var answer struct {
		Version  int64
		Programs []struct {
			Name           string
			Behind, Silent bool
			Defaults       []limiter.Policy
		}
	}
	out := run(0, "programs", "--json")
	must.Succeed(t, json.Unmarshal([]byte(out[strings.Index(out, "{"):strings.LastIndex(out, "}")+1]), &answer))
	if all := answer.Programs; answer.Version != 1 || len(all) != 3 || all[0].Name != "old" || !all[0].Silent || all[1].Behind || all[1].Silent || !all[2].Behind || all[1].Defaults[0] != hourly {
		t.Errorf("got %s", out)
	}

	if text := run(0, "policy", "list"); strings.Contains(text, "api") {
		t.Errorf("list without --effective has defaults:\n%s", text)
	}
	effective := run(0, "policy", "list", "--effective")
	contains(effective, "stored token_bucket 1 per 1m", "api gcra 100 per 1h 100 default of web on host-web, seen 3m ago, and 1 more program", "api gcra 10 per 1h 10 default of old on host-old, seen 30m ago")
	if strings.Contains(effective, " 9 ") || strings.Index(effective, "of web") > strings.Index(effective, "of old") {
		t.Errorf("a default that is replaced, or not the latest first:\n%s", effective)
	}

	contains(run(0, "allow", "--policy", "api", "alice"), "allowed: 99 of 100 remaining", "--policy is api: the default of web on host-web, which the database does not have")
	contains(run(0, "check", "--policy", "api", "alice"), "of 100 remaining")
	contains(run(0, "usage", "--policy", "api", "alice"), " of 100 ")
	contains(run(0, "allow-all", "--policy", "stored", "alice", "--policy", "api", "alice"), " of 100 ")
	contains(run(0, "block", "bob", "--policy", "api"), `+ override of api for "bob" blocked: true`)
	contains(run(1, "allow", "--policy", "api", "bob"), "denied (blocked)")
	contains(run(0, "unblock", "bob"), "1 override")
	contains(run(0, "override", "set", "carol", "--policy", "api", "--limit", "2x"), "factor: 2")
	contains(run(0, "check", "--policy", "api", "carol"), "of 200 remaining")
	contains(run(2, "allow", "--policy", "nothere", "alice"), "neither the database nor a program has such a policy")
	testworld.Exec(t, pool, `DELETE FROM pglimit_override`)
	contains(run(2, "policy", "set", "other", "--limit", "50"), "--period or --calendar")
	contains(run(0, "policy", "set", "api", "--limit", "50", "--note", "agreed"), "from the default of web on host-web", "not from that of old on host-old, seen 30m ago: limit 10 per 1h", "~ policy api limit: 100 → 50 note: agreed version 6")
	contains(run(0, "policy", "history", "api", "--rows", "1"), "version 6", ": agreed (from the default of web on host-web: limit: 100 → 50)")
	contains(run(0, "policy", "get", "api"), "algorithm: gcra limit: 50 period: 1h")
	if text := run(0, "policy", "list", "--effective"); strings.Contains(text, "default") {
		t.Errorf("a default that is replaced:\n%s", text)
	}
	contains(run(0, "policy", "set", "api", "--limit", "60"), "~ policy api limit: 50 → 60")
}
