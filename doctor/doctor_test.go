package doctor

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/cluster"
	"github.com/pglimit/pglimit/internal/migrate"
	"github.com/pglimit/pglimit/internal/strangers"
	"github.com/pglimit/pglimit/janitor"
)

func want(t *testing.T, c Check, verdict Verdict, words ...string) {
	t.Helper()
	text := c.Message + "\n" + c.Fix + "\n" + c.NextStep + "\n" + strings.Join(c.Details, "\n")
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%+v does not say %q", c, w)
		}
	}
	if c.Verdict != verdict || (c.Verdict == OK) != (c.Fix+c.NextStep == "") {
		t.Errorf("%+v, want %v", c, verdict)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	want(t, judgeVersion(120022), Fail, "PostgreSQL 12.22 is too old")
	want(t, judgeVersion(130023), OK, "PostgreSQL 13.23")
}

func TestPrimary(t *testing.T) {
	t.Parallel()
	x := Check{Fix: "x"}
	want(t, judgePrimary(true, false, x), Fail, "in recovery", "target_session_attrs=read-write")
	want(t, judgePrimary(false, true, x), Fail, "BEGIN READ WRITE; x; COMMIT")
	want(t, judgePrimary(false, true, Check{NextStep: "remove it"}), Fail, "remove it")
	want(t, judgePrimary(false, false, x), OK)
}

func TestReplicas(t *testing.T) {
	t.Parallel()
	a, s, fix := replica{"a", "async"}, replica{"s", "sync"}, Check{Fix: "x"}
	want(t, judgeReplicas(nil, "", "on", fix), OK, "no replica")
	want(t, judgeReplicas([]replica{a, a}, "", "on", fix), OK, "2 replicas, all asynchronous", "granted again")
	want(t, judgeReplicas([]replica{a, s}, "s", "on", fix), OK, "1 of 2 replicas are synchronous")
	want(t, judgeReplicas([]replica{a}, "s", "on", fix), Fail, "commits wait", "replica a is async")
	want(t, judgeReplicas([]replica{a}, "s", "local", fix), OK, "asynchronous")
}

func TestConnections(t *testing.T) {
	t.Parallel()
	free := func(used int64) load { return load{Used: used, RoleLimit: -1, DataLimit: -1} }
	want(t, judgeConnections(free(10), 97, 4, 0), OK)
	want(t, judgeConnections(free(78), 97, 4, 0), Warn)
	want(t, judgeConnections(free(93), 97, 4, 0), Fail)
	want(t, judgeConnections(free(50), 97, 60, 0), Warn)
	want(t, judgeConnections(free(50), 97, 60, 20), OK)
	want(t, judgeConnections(free(10), 97, 0, 2), Warn, "may open all others")
	want(t, judgeConnections(free(93), 97, 0, 2), Fail)
	want(t, judgeConnections(load{Used: 10, RoleUsed: 20, RoleLimit: 20, DataLimit: -1}, 97, 4, 0), Fail, "the role's")
	want(t, judgeConnections(load{Used: 10, RoleLimit: -1, DataUsed: 2, DataLimit: 3}, 97, 4, 2), Warn, "the database's")
}

func TestPooler(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for _, c := range []struct {
		mode           pgx.QueryExecMode
		between, tried bool
		lost           error
		want           Verdict
	}{
		{pgx.QueryExecModeCacheStatement, false, true, nil, OK},
		{pgx.QueryExecModeDescribeExec, false, true, nil, OK},
		{pgx.QueryExecModeCacheStatement, true, true, lost, Warn},
		{pgx.QueryExecModeCacheStatement, true, true, nil, OK},
		{pgx.QueryExecModeCacheStatement, true, false, nil, Warn},
		{pgx.QueryExecModeDescribeExec, true, true, nil, Warn},
		{pgx.QueryExecModeCacheDescribe, true, true, nil, OK},
		{pgx.QueryExecModeExec, true, false, nil, OK},
		{pgx.QueryExecModeSimpleProtocol, true, true, nil, OK},
	} {
		got := judgePooler(c.mode, c.between, c.tried, c.lost)
		want(t, got, c.want, modeName(c.mode)[:4])
	}
}

func TestTables(t *testing.T) {
	t.Parallel()
	add := Check{Fix: "add"}
	want(t, judgeTables("", nil, []string{"a", "b"}, add), Fail, "(a, b)", "pglimit migrate up")
	want(t, judgeTables("", []string{"c"}, nil, add), Fail, "schema c", "add")
	want(t, judgeTables("", []string{"c"}, nil, Check{}), Fail, "?search_path=c")
	want(t, judgeTables("a", []string{"a"}, []string{"a"}, add), OK)
	want(t, judgeTables("a", []string{"a", "b"}, []string{"a"}, add), Warn)
	want(t, judgeSchemas([]strangers.Exposure{{Schema: "a", Creators: []string{"x", "PUBLIC"}}}, nil, "o"), Warn, "REVOKE CREATE ON SCHEMA a FROM x, PUBLIC")
	want(t, judgeSchemas([]strangers.Exposure{{Schema: "a", Owner: "x"}}, nil, "o"), Warn, "ALTER SCHEMA a OWNER TO o")
}

// TestObjects: what another tool has created is compared with what a release creates.
func TestObjects(t *testing.T) {
	t.Parallel()
	one, two := migrate.Presence{Present: []string{"a"}}, migrate.Presence{Missing: []string{"b", "c"}}
	run := Check{NextStep: "run it"}
	want(t, judgeObjects([]migrate.Presence{two}, nil, "another tool", run), OK, "not installed")
	want(t, judgeObjects([]migrate.Presence{one, two}, nil, "another tool", run), Fail, "b missing", "run it")
	want(t, judgeObjects([]migrate.Presence{one, one}, nil, "another tool", run), OK, "another tool")
}

// TestNeeds: a check needs earlier ones, so that the one that reports a cause comes first.
func TestNeeds(t *testing.T) {
	t.Parallel()
	names := Names()
	for i, c := range all {
		for _, n := range c.needs {
			if at := slices.Index(names, n); at < 0 || at >= i {
				t.Errorf("%s needs %s", c.name, n)
			}
		}
	}
}

// TestShell: a role is one word of a command line.
func TestShell(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"app_1": "app_1", "it's $me": `'it'\''s $me'`, "": "''"} {
		if got := shell(word); got != want {
			t.Errorf("%q: %s", word, got)
		}
	}
}

func TestVacuum(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	gcra := table{name: "pglimit_token_bucket", quoted: "a.pglimit_token_bucket", options: []string{"fillfactor=70"}}
	want(t, judgeHOT(statistics{Updates: 9_999}, gcra), OK)
	want(t, judgeHOT(statistics{Updates: 10_000, HOT: 9_000}, gcra), OK)
	want(t, judgeHOT(statistics{Updates: 10_000, HOT: 8_999}, gcra), OK)
	want(t, judgeHOT(statistics{Updates: 10_000, HOT: 8_999, Drops: []string{"DROP INDEX a.x"}}, gcra), Warn, "90.0 %", "DROP INDEX a.x")
	want(t, judgeHOT(statistics{Updates: 10_000}, table{quoted: "x"}), Warn, "ALTER TABLE x SET (fillfactor = 70)")

	want(t, judgeBloat(statistics{Live: 0, Dead: 9_999}, gcra), OK)
	want(t, judgeBloat(statistics{Live: 16_000, Dead: 10_000}, gcra), OK)
	want(t, judgeBloat(statistics{Live: 15_000, Dead: 10_000}, gcra), Warn, "VACUUM a.pglimit_token_bucket")
	want(t, judgeBloat(statistics{Live: 1000, Bytes: 300 << 20}, gcra), Warn, "VACUUM FULL a.pglimit_token_bucket", "300 MB for 1000 rows")
	want(t, judgeBloat(statistics{Live: 1000, Bytes: 200 << 20}, gcra), OK)
	want(t, judgeBloat(statistics{Live: 1_000_000, Bytes: 300 << 20}, gcra), OK)
	want(t, judgeBloat(statistics{Live: 1000, Bytes: 300 << 20}, table{name: "pglimit_sliding_window_log"}), OK)

	want(t, judgeAutovacuum(statistics{Dead: 20_000, Now: now}, gcra), Warn, "vacuumed never")
	want(t, judgeAutovacuum(statistics{Dead: 20_000, Vacuum: ago(2 * time.Hour), Now: now}, gcra), Warn, "2h ago")
	want(t, judgeAutovacuum(statistics{Dead: 20_000, Vacuum: ago(time.Minute), Now: now}, gcra), OK)
	want(t, judgeAutovacuum(statistics{Dead: 20_000, Live: 30_000, Now: now}, gcra), OK)
	want(t, judgeAutovacuum(statistics{}, table{quoted: "x", options: []string{"autovacuum_enabled=off"}}), Fail)
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	const old = time.Minute
	judge := func(p pin) Check { return judgePins([]pin{p}, old) }
	want(t, judge(pin{Kind: "session", AgeS: 59}), OK)
	want(t, judge(pin{Kind: "session", PID: 7, AgeS: 61, State: "active"}), Warn, "SELECT pg_terminate_backend(7)")
	want(t, judge(pin{Kind: "session", AgeS: 3601}), Fail)
	want(t, judge(pin{Kind: "prepared", Name: "x'y", AgeS: 61, Mine: true}), Warn, "ROLLBACK PREPARED 'x''y'")
	want(t, judge(pin{Kind: "prepared", Name: "x", AgeS: 3601}), Fail, "in the database that has it")
	want(t, judge(pin{Kind: "slot", XIDs: oldXIDs - 1}), OK)
	want(t, judge(pin{Kind: "slot", Name: "standby", State: "inactive", XIDs: oldXIDs}), Warn, "SELECT pg_drop_replication_slot('standby')")
	want(t, judge(pin{Kind: "walsender", Name: "standby", XIDs: oldXIDs}), Warn, "hot_standby_feedback")
}

func TestClockAndSweeps(t *testing.T) {
	t.Parallel()
	want(t, judgeClock(3*time.Second, 3*time.Second), OK, "ahead of")
	want(t, judgeClock(-3*time.Second, time.Second), Warn, "behind")
	want(t, judgeClock(6*time.Minute, time.Second), Fail)
	at := time.Now()
	for _, c := range []struct {
		state janitor.State
		want  Verdict
		words []string
	}{
		{janitor.State{}, OK, []string{"no sweep was ever completed; 0 due rows"}},
		{janitor.State{DueRows: 3}, Warn, []string{"pglimit janitor --once", "run `pglimit janitor`"}},
		{janitor.State{DueRows: 3, Lag: 60 * time.Minute}, Warn, []string{"the oldest for 1h"}},
		{janitor.State{DueRows: 3, Lag: 61 * time.Minute}, Fail, nil},
		{janitor.State{SweptAt: at, DueRows: janitor.StateBound, Lag: 5 * time.Minute}, OK, []string{"100000 or more due rows"}},
		{janitor.State{SweptAt: at, DueRows: 3, Lag: 6 * time.Minute}, Warn, []string{"the oldest for 6m"}},
		{janitor.State{SweptAt: at.Add(time.Hour), DueRows: 5}, OK, []string{"ended 0s ago"}}, // a clock set back
		{janitor.State{SweptAt: at.Add(-5 * time.Minute)}, OK, nil},
		{janitor.State{SweptAt: at.Add(-2 * time.Hour)}, Warn, []string{"ended 2h"}}, // nothing waits
		{janitor.State{SweptAt: at.Add(-2 * time.Hour), ExpiredReservations: 1}, Fail, nil},
		{janitor.State{SweptAt: at.Add(-2 * time.Hour), Holder: "x", LeaseEndsAt: at.Add(time.Minute)}, Warn, []string{"janitor x has the lease for another 1m", "that process's log"}},
	} {
		c.state.At = at
		want(t, judgeJanitor(c.state, time.Minute), c.want, c.words...)
	}
}

// TestPrograms: a program that missed three heartbeats is silent, unless another one took its
// place, and one that has another version half a minute after a change lags.
func TestPrograms(t *testing.T) {
	t.Parallel()
	beat := db.ProgramsRow{Instance: "i", Name: "shop", Host: "web", Pid: 7, HeartbeatS: 2, PoliciesVersion: 5}
	silent, later := beat, beat
	silent.SeenUs, silent.SeenAtUs = 7_000_000, 100
	later.StartedAtUs = 101
	elsewhere := later
	elsewhere.Host = "other"
	first := beat
	first.More = true
	const minute = time.Minute
	for _, c := range []struct {
		all     []db.ProgramsRow
		version int64
		since   time.Duration
		want    Verdict
		words   []string
	}{
		{nil, 5, minute, OK, []string{"0 programs"}},
		{[]db.ProgramsRow{beat, later}, 5, minute, OK, []string{"version 5"}},
		{[]db.ProgramsRow{silent}, 5, minute, Warn, []string{"shop on web, pid 7, was seen 7s ago, and every 2s before", "DELETE FROM t WHERE instance = 'i'"}},
		{[]db.ProgramsRow{silent, elsewhere}, 5, minute, Warn, []string{"1 of 2 programs"}},
		{[]db.ProgramsRow{silent, later}, 5, minute, OK, nil},
		{[]db.ProgramsRow{beat}, 6, 29 * time.Second, OK, nil},
		{slices.Repeat([]db.ProgramsRow{silent}, 300), 5, minute, Warn, []string{"at least 100 of 300 programs"}},
		{[]db.ProgramsRow{first}, 5, minute, OK, []string{"of the programs seen last, all of 1 program"}},
		{[]db.ProgramsRow{beat}, 6, minute, Warn, []string{"version 5 of the policies, which are at version 6", "see the program's log"}},
	} {
		want(t, judgePrograms(c.all, c.version, c.since, "t"), c.want, c.words...)
	}
}

// TestLocks: a transaction that keeps locks is found if others wait, also if its state is not
// visible, and only if it kept them.
func TestLocks(t *testing.T) {
	t.Parallel()
	p := &patient{config: Config{OldTransaction: time.Minute}, tables: []table{{oid: 3, quoted: "limits.pglimit_token_bucket"}}}
	one := holder{Transaction: "1/2", Table: 3, pin: pin{Kind: "session", Name: "report", PID: 7, State: "idle in transaction", AgeS: 3, Mine: true}, Waiting: []string{"pid 8", "pid 9"}}
	want(t, p.judgeLocks([]holder{one}), Warn, `pid 7, application "report", idle in transaction for 3s`, "rows of limits.pglimit_token_bucket; 2 sessions wait for it: pid 8; pid 9", "SELECT pg_terminate_backend(7)")
	old, hidden, alone, prepared := one, one, one, one
	old.AgeS = 61
	want(t, p.judgeLocks([]holder{old}), Fail)
	hidden.State, hidden.AgeS = "", 0
	want(t, p.judgeLocks([]holder{hidden}), Warn, "may not see")
	prepared.pin = pin{Kind: "prepared", Name: "x", AgeS: 3, Mine: true}
	want(t, p.judgeLocks([]holder{prepared}), Warn, "ROLLBACK PREPARED 'x'")
	alone.Waiting = nil
	want(t, p.judgeLocks([]holder{alone}), OK)

	other := one
	other.Transaction = "1/3"
	if got := still([]holder{one}, []holder{alone, other}); len(got) != 1 || len(got[0].Waiting) != 2 {
		t.Errorf("%+v", got)
	}
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	want(t, judgeOverrides(Check{}, 79_999, 0, "o"), OK)
	want(t, judgeOverrides(Check{}, 80_000, 5, "o"), Warn, "5 have ended", "DELETE FROM o")
	want(t, judgeOverrides(Check{}, 100_000, 5, "o"), Warn)
	want(t, judgeOverrides(Check{}, 100_001, 5, "o"), Fail)
}

func TestStatusText(t *testing.T) {
	t.Parallel()
	for _, s := range []Verdict{OK, Unchecked, Warn, Fail} {
		var again Verdict
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%v: %v, %v", s, again, err)
		}
	}
	var s Verdict
	if err := s.UnmarshalText([]byte("bad")); err == nil || Verdict(7).String() != "Verdict(7)" {
		t.Error(err)
	}
	if r := (Report{Checks: []Check{{}, {Verdict: Fail}, {Verdict: Warn}}}); r.Verdict() != Fail || (Report{}).Verdict() != OK {
		t.Error("not the worst")
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	all := []string{"pglimit_token_bucket"}
	judge := func(change func(*cluster.Cluster)) Check {
		c := &cluster.Cluster{Version: "13.2-1", Shards: 4, Nodes: []cluster.Node{{Name: "a:1", Shards: 2, Synced: true}, {Name: "b:1", Shards: 2, Synced: true}}, Distributed: all}
		change(c)
		return judgeCluster(c)
	}
	want(t, judgeCluster(nil), OK, "one server")
	want(t, judge(func(c *cluster.Cluster) {}), OK, "4 shards: a:1 has 2, b:1 has 2")
	want(t, judge(func(c *cluster.Cluster) { c.Distributed, c.Local, c.Shards, c.Missing = nil, all, 0, all }), OK, "not distributed")
	want(t, judge(func(c *cluster.Cluster) { c.Distributed, c.Local, c.Shards = nil, all, 0 }), Warn, "--undo")
	want(t, judge(func(c *cluster.Cluster) { c.Local = all }), Fail, "pglimit_token_bucket", "pglimit migrate distribute")
	want(t, judge(func(c *cluster.Cluster) { c.Missing = []string{"pglimit_shard"} }), Fail, "pglimit_shard", "pglimit migrate distribute")
	want(t, judge(func(c *cluster.Cluster) { c.Outdated = true }), Warn, "another release", "pglimit migrate distribute")
	want(t, judge(func(c *cluster.Cluster) { c.Exposed = []string{"on a:1 bob may create"} }), Warn, "on a:1 bob may create", "connect to that node")
	want(t, judge(func(c *cluster.Cluster) { c.Lost = 1 }), Fail, "1 shards are on no node")
	want(t, judge(func(c *cluster.Cluster) { c.Nodes[0].Synced = false }), Fail, "a:1 lacks", "start_metadata_sync_to_all_nodes")
	want(t, judge(func(c *cluster.Cluster) { c.Nodes[0].Shards, c.Nodes[1].Shards = 4, 0 }), Warn, "citus_rebalance_start")
}
