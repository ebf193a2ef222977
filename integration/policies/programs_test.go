package policies

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// expectPrograms waits until the listed programs are those, by name, with their versions.
func expectPrograms(t *testing.T, pool *pgxpool.Pool, want map[string]int64) (rows map[string]db.ProgramsRow) {
	t.Helper()
	testworld.Eventually(t, "the listed programs are as expected", func(ctx context.Context) (bool, error) {
		all, err := db.New().Programs(ctx, pool)
		rows = map[string]db.ProgramsRow{}
		versions := map[string]int64{}
		for _, p := range all {
			rows[p.Name], versions[p.Name] = p, p.PoliciesVersion
		}
		return len(all) == len(want) && reflect.DeepEqual(versions, want), err
	})
	return rows
}

// TestPrograms: each program has a row, with the version that it has loaded and its defaults,
// until Close. One that is not seen for a day is deleted by the others.
func TestPrograms(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	testworld.Exec(t, pool, `INSERT INTO pglimit_program (policies_version, pid, heartbeat_s, started_at, seen_at, instance, name, host, library, defaults)
		SELECT 1, 1, 120, now() - '2 days'::interval, now() - h.ago, h.name, h.name, '', '', '[]'
		FROM (VALUES ('old', '25 hours'::interval), ('killed', '23 hours'::interval)) AS h (name, ago)`)
	web := open(t, pool, policies.Config{PublishEvery: time.Hour, Program: "web"})
	worker := must.OK(policies.OpenSQL(t.Context(), testworld.ConnectSQL(t, "postgres", address), &policies.Config{PublishEvery: time.Hour, Program: "worker"}))(t)
	t.Cleanup(func() { _ = worker.Close() })
	api := limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 100, Period: time.Hour}
	must.Succeed(t, web.Default(login, api))
	var rows map[string]db.ProgramsRow
	testworld.Eventually(t, "web's row has its defaults", func(context.Context) (bool, error) {
		rows = expectPrograms(t, pool, map[string]int64{"web": 0, "worker": 0, "killed": 1})
		return rows["web"].Defaults != "[]", nil
	})
	var defaults []limiter.Policy
	if err := json.Unmarshal([]byte(rows["web"].Defaults), &defaults); err != nil || !reflect.DeepEqual(defaults, []limiter.Policy{api, login}) {
		t.Errorf("defaults %s, %v", rows["web"].Defaults, err)
	}
	host, _ := os.Hostname()
	if r := rows["worker"]; r.Pid != int64(os.Getpid()) || r.Host != host || r.Library == "" || r.Defaults != "[]" || r.HeartbeatS != 3600 ||
		r.StartedAtUs > r.SeenAtUs || r.SeenUs < 0 {
		t.Errorf("got %+v", r)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_program WHERE name = 'old'`); n != 0 {
		t.Errorf("%d rows of a program that was not seen for a day", n)
	}
	version := apply(t, web.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}})
	expectPrograms(t, pool, map[string]int64{"web": version, "worker": version, "killed": 1})
	if err := web.Close(); err != nil {
		t.Error(err)
	}
	expectPrograms(t, pool, map[string]int64{"worker": version, "killed": 1})
}

// TestProgramsBounded: a role that may write the table stores no row that readers cannot take.
// It fills no reader's memory by many rows or by large ones.
func TestProgramsBounded(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	const insert = `INSERT INTO pglimit_program (policies_version, pid, heartbeat_s, started_at, seen_at, instance, name, host, library, defaults) `
	for _, values := range []string{
		`120, 'infinity', now(), '', '', '', ''`, `120, now(), 'infinity', '', '', '', ''`, `120, '-infinity', now(), '', '', '', ''`, `120, now(), '294276-12-31', '', '', '', ''`,
		`'NaN', now(), now(), '', '', '', ''`, `'inf', now(), now(), '', '', '', ''`, `-1, now(), now(), '', '', '', ''`,
		`120, now(), now(), repeat('x', 1001), '', '', ''`, `120, now(), now(), '', repeat('x', 1001), '', ''`, `120, now(), now(), '', '', repeat('x', 1001), ''`, `120, now(), now(), '', '', '', repeat('x', 1001)`,
	} {
		_, err := pool.Exec(t.Context(), insert+`VALUES (1, 1, `+values+`, '[]')`)
		if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != "23514" {
			t.Errorf("%s: %v", values, err)
		}
	}
	testworld.Exec(t, pool, insert+`SELECT 1, 1, 120, now(), now() - i * '1 s'::interval, i::text, i::text, '', '', CASE WHEN i <= 10 THEN to_jsonb(repeat('x', 2000000)) ELSE '[]' END FROM generate_series(1, 10001) AS i`)
	all, err := db.New().Programs(t.Context(), pool)
	bytes, whole := 0, 0
	for _, p := range all {
		if bytes += len(p.Defaults); p.Defaults != "" && p.More {
			whole++
		}
	}
	if err != nil || len(all) != 10000 || bytes > 16_000_000 || whole != 9997 || slices.ContainsFunc(all, func(p db.ProgramsRow) bool { return p.Name == "10001" }) {
		t.Errorf("%d programs, %d with defaults of %d bytes, %v", len(all), whole, bytes, err)
	}
}

// TestProgramHeartbeat: a program writes its row again and again, and again after someone has
// deleted it.
func TestProgramHeartbeat(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	open(t, pool, policies.Config{PublishEvery: time.Second, Program: "web"})
	before := expectPrograms(t, pool, map[string]int64{"web": 0})["web"]
	seen := func(r db.ProgramsRow) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			all, err := db.New().Programs(ctx, pool)
			return err == nil && len(all) == 1 && !all[0].More && all[0].SeenAtUs > r.SeenAtUs && all[0].StartedAtUs-r.StartedAtUs < 1_000_000, err
		}
	}
	testworld.Eventually(t, "it is written again", seen(before))
	testworld.Exec(t, pool, `DELETE FROM pglimit_program`)
	testworld.Eventually(t, "it is listed again", seen(before))
}

// TestProgramsUnlisted: where a program cannot be listed, one warning is logged, and
// decisions, policies and Close are as otherwise.
func TestProgramsUnlisted(t *testing.T) {
	t.Parallel()
	tries := &counted{name: "ProgramPublish"}
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = tries })
	testworld.Exec(t, pool, `DROP TABLE pglimit_program`)
	logger, logs := newLog()
	p := open(t, pool, policies.Config{PublishEvery: time.Second, Logger: logger})
	l := testworld.NewLimiter(t, pool, &limiter.Config{Policies: p.Policies})
	version := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}}})
	testworld.Eventually(t, "it tries again", func(context.Context) (bool, error) { return tries.n.Load() > 2, nil })
	for i := range 3 {
		limit := float64(6 + i)
		testworld.Exec(t, pool, `UPDATE pglimit_policy SET limit_units = $1`, limit)
		p.await(t, version+1+int64(i))
		if got, err := p.Get("login"); err != nil || got.Limit != limit {
			t.Errorf("%+v, %v", got, err)
		}
		if r, err := l.Allow(t.Context(), login, "k"); err != nil || !r.Allowed {
			t.Errorf("%+v, %v", r, err)
		}
	}
	const warning = `level=WARN msg="pglimit: this program cannot be listed in pglimit_program`
	if text := logs.Take(); strings.Count(text, warning) != 1 {
		t.Errorf("logged %s", text)
	}
}
