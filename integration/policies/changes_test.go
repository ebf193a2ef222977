package policies

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// version reads the version in the database.
func version(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	return testworld.Value[int64](t, pool, `SELECT version FROM pglimit_policy_version`)
}

// history returns the whole history, oldest first, as "version name/key before>after note".
func history(t *testing.T, pool *pgxpool.Pool) (all []string) {
	t.Helper()
	rows := must.OK(pool.Query(t.Context(), `SELECT format('%s %s/%s %s>%s %s', version, name, key, coalesce(before ->> 'limit_units', '-'), coalesce(after ->> 'limit_units', '-'), note)
		FROM pglimit_policy_history ORDER BY id`))(t)
	all = must.OK(pgx.CollectRows(rows, pgx.RowTo[string]))(t)
	return all
}

// TestTriggers: every change is noted, whatever makes it, and what is none is not.
func TestTriggers(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	const insert = `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, note) VALUES `
	for _, step := range []struct {
		sql     string
		version int64
		history []string
	}{
		{insert + `('a', 'gcra', 1, 1, 'one'), ('b', 'gcra', 2, 1, 'two')`, 1, []string{"1 a/ ->1 one", "1 b/ ->2 two"}},
		{`UPDATE pglimit_policy SET limit_units = 3 WHERE name = 'a'`, 2, []string{"2 a/ 1>3 "}},
		{`UPDATE pglimit_policy SET limit_units = 3, version = 7, changed_by = 'x', changed_at = '2000-01-01'`, 3, []string{"3 b/ 2>3 "}},
		{`UPDATE pglimit_policy SET version = 7`, 3, nil},
		{`UPDATE pglimit_policy SET limit_units = 9 WHERE name = 'none'`, 3, nil},
		{`BEGIN; UPDATE pglimit_policy SET limit_units = 4 WHERE name = 'a'; UPDATE pglimit_policy SET limit_units = 5 WHERE name = 'a'; COMMIT`, 4, []string{"4 a/ 3>4 ", "4 a/ 4>5 "}},
		{`BEGIN; UPDATE pglimit_policy SET limit_units = 9; ROLLBACK`, 4, nil},
		{`BEGIN; SAVEPOINT s; UPDATE pglimit_policy SET limit_units = 9; ROLLBACK TO s; UPDATE pglimit_policy SET limit_units = 6 WHERE name = 'a'; COMMIT`, 5, []string{"5 a/ 5>6 "}},
		{`UPDATE pglimit_policy SET name = 'c', note = 'renamed' WHERE name = 'a'`, 6, []string{"6 a/ 6>- renamed", "6 c/ ->6 renamed"}},
		{`INSERT INTO pglimit_override (policy, key, limit_units) VALUES ('c', 'k', 9)`, 7, []string{"7 c/k ->9 "}},
		{`UPDATE pglimit_override SET key = 'l'`, 8, []string{"8 c/k 9>- ", "8 c/l ->9 "}},
		{`BEGIN; SELECT set_config('pglimit.note', 'why', true); DELETE FROM pglimit_override; DELETE FROM pglimit_policy WHERE name = 'b'; COMMIT`, 9, []string{"9 c/l 9>- why", "9 b/ 3>- why"}},
		{`DELETE FROM pglimit_policy WHERE name = 'none'`, 9, nil},
		{`DELETE FROM pglimit_policy`, 10, []string{"10 c/ 6>- "}},
		{`INSERT INTO pglimit_override (policy, key, match, blocked, note) VALUES ('c', 'k', 'prefix', true, 'bots')`, 11, []string{"11 c/k ->- bots"}},
		{`UPDATE pglimit_override SET match = 'pattern'`, 12, []string{"12 c/k ->- ", "12 c/k ->- "}}, // one goes, another comes
		{`UPDATE pglimit_override SET match = 'pattern'`, 12, nil},
		{`DELETE FROM pglimit_override`, 13, []string{"13 c/k ->- "}},
	} {
		before := len(history(t, pool))
		testworld.Exec(t, pool, step.sql)
		if got := history(t, pool)[before:]; version(t, pool) != step.version || fmt.Sprint(got) != fmt.Sprint(step.history) {
			t.Errorf("%s: version %d, %q; want %d, %q", step.sql, version(t, pool), got, step.version, step.history)
		}
	}
	testworld.Exec(t, pool, `SET TIME ZONE 'Australia/Lord_Howe'; SET extra_float_digits = 0;`+insert+`('d', 'gcra', 0.1::float8 + 0.2::float8, 1, '')`)
	if n := testworld.Value[float64](t, pool, `SELECT (after ->> 'limit_units')::float8 FROM pglimit_policy_history WHERE name = 'd'`); n != 0.30000000000000004 {
		t.Errorf("the history has %v", n)
	}
	if s := testworld.Value[string](t, pool, `SELECT after ->> 'changed_at' FROM pglimit_policy_history WHERE name = 'd'`); !strings.HasSuffix(s, "+00:00") {
		t.Errorf("the history has %s", s)
	}
	for _, table := range []string{"pglimit_policy", "pglimit_override"} {
		var answer *pgconn.PgError
		if _, err := pool.Exec(t.Context(), `TRUNCATE `+table); !errors.As(err, &answer) || answer.Code != "0A000" || !strings.Contains(answer.Hint, "DELETE FROM public."+table) {
			t.Errorf("TRUNCATE: %v", err)
		}
	}
	testworld.Exec(t, pool, `DELETE FROM pglimit_policy_version`)
	var answer *pgconn.PgError
	_, err := pool.Exec(t.Context(), `DELETE FROM pglimit_policy`)
	if !errors.As(err, &answer) || answer.Code != "55000" {
		t.Fatalf("without a version: %v", err)
	}
	testworld.Exec(t, pool, answer.Hint)
	testworld.Exec(t, pool, `DELETE FROM pglimit_policy`)
	if v := version(t, pool); v != 15 {
		t.Errorf("after the hint, version %d", v)
	}
}

// TestWritersWaitForEachOther: transactions that lock rows in different orders end without a
// deadlock, and their versions become visible in their order.
func TestWritersWaitForEachOther(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := open(t, pool, policies.Config{})
	var set []policies.Stored
	for _, name := range []string{"a", "b"} {
		q := login
		q.Name = name
		set = append(set, policies.Stored{Policy: q})
	}
	apply(t, p.Policies, policies.Edit{Set: set})
	const rounds = 20
	var writers sync.WaitGroup
	for i, order := range [][2]string{{"a", "b"}, {"b", "a"}, {"a", "b"}} {
		writers.Go(func() {
			for n := range rounds {
				err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					for _, name := range order {
						if _, err := tx.Exec(t.Context(), `UPDATE pglimit_policy SET limit_units = $1 WHERE name = $2`, float64(10+3*n+i), name); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Go(func() {
		for n := range rounds {
			if _, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "a", Key: "k", Limit: new(float64(n + 1))}}}); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	if got, want := version(t, pool), int64(1+4*rounds); got != want {
		t.Errorf("version %d, want %d", got, want)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM (SELECT version < lag(version) OVER (ORDER BY id) AS back FROM pglimit_policy_history) AS h WHERE back`); n != 0 {
		t.Errorf("%d versions went back", n)
	}
	p.await(t, version(t, pool))
}

func TestIfVersion(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	one, two := open(t, pool, policies.Config{}), open(t, pool, policies.Config{})
	set := func(limit float64) []policies.Stored {
		p := login
		p.Limit = limit
		return []policies.Stored{{Policy: p}}
	}
	first := apply(t, one.Policies, policies.Edit{Set: set(1)})
	two.await(t, first)
	apply(t, two.Policies, policies.Edit{IfVersion: first, Set: set(2)})
	if _, err := one.Apply(t.Context(), policies.Edit{IfVersion: first, Set: set(3)}); !errors.Is(err, policies.ErrChanged) {
		t.Errorf("%v", err)
	}
	one.await(t, first+1)
	if p, err := one.Get("login"); err != nil || p.Limit != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	if v := apply(t, one.Policies, policies.Edit{Set: set(2)}); v != first+1 {
		t.Errorf("what is already so made version %d", v)
	}
	if _, err := one.Apply(t.Context(), policies.Edit{Set: set(9), Delete: []string{"none"}}); !errors.Is(err, policies.ErrNoPolicy) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("%v", err)
	}
	if _, err := one.Apply(t.Context(), policies.Edit{Set: set(9), DeleteOverrides: []policies.Override{{Policy: "login", Key: "k"}}}); !errors.Is(err, policies.ErrNoPolicy) || !strings.Contains(err.Error(), `"k"`) {
		t.Errorf("%v", err)
	}
	if v := version(t, pool); v != first+1 {
		t.Errorf("a refused edit made version %d", v)
	}
}

// TestNoteBelongsToItsChange: the history has a note with the change that brought it only, and
// an edit's note with all its changes. Each version of a policy can be read again.
func TestNoteBelongsToItsChange(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]*policies.Policies{"database": open(t, testworld.NewPool(t), policies.Config{}).Policies, "memory": must.OK(policies.New())(t)} {
		for i, note := range []string{"", "", "ticket 7", ""} {
			q, o := policies.Stored{Policy: login, Note: "new"}, policies.Override{Policy: "login", Key: "k", Limit: new(7.0 + float64(i)), Note: "vip"}
			q.Limit = 1 + float64(i)
			apply(t, p, policies.Edit{Note: note, Set: []policies.Stored{q}, SetOverrides: []policies.Override{o}})
		}
		var notes []string
		for _, c := range must.OK(p.History(t.Context(), "login", 100))(t) {
			notes = append(notes, c.Note)
		}
		if got := fmt.Sprintf("%q", notes); got != `["" "" "ticket 7" "ticket 7" "" "" "vip" "new"]` {
			t.Errorf("%s: the notes are %s", name, got)
		}
		for v := range int64(5) {
			if was, err := p.AtVersion(t.Context(), "login", v); err != nil || (was == nil) != (v == 0) || was != nil && (was.Limit != float64(v) || was.Note != "new") {
				t.Errorf("%s: version %d was %+v, %v", name, v, was, err)
			}
		}
	}
}

func TestHistory(t *testing.T) {
	t.Parallel()
	p := open(t, testworld.NewPool(t), policies.Config{})
	until := time.Date(2100, 1, 2, 3, 4, 5, 6000, time.UTC)
	apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login, Note: "new"}}, SetOverrides: []policies.Override{{Policy: "login", Key: "k", Limit: new(7.0), Until: until, Note: "vip"}}})
	changed := login
	changed.Limit = 0.1 + 0.2
	apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: changed, Note: "more", Askers: true}}})
	apply(t, p.Policies, policies.Edit{Delete: []string{"login"}, DeleteOverrides: []policies.Override{{Policy: "login", Key: "k"}}, Note: "over"})
	all, err := p.History(t.Context(), "login", 100)
	if err != nil || len(all) != 5 {
		t.Fatalf("%+v, %v", all, err)
	}
	for i, want := range []struct {
		version   int64
		key, note string
	}{{3, "k", "over"}, {3, "", "over"}, {2, "", "more"}, {1, "k", "vip"}, {1, "", "new"}} {
		if c := all[i]; c.Version != want.version || c.Key != want.key || c.Note != want.note || c.Name != "login" || c.ChangedBy == "" || time.Since(c.ChangedAt).Abs() > time.Hour {
			t.Errorf("%d: %+v", i, c)
		}
	}
	if c := all[2]; c.Before.Policy != login || c.After.Policy != changed || !c.After.Askers || c.After.MaxTTL != 24*time.Hour || c.OverrideBefore != nil || c.OverrideAfter != nil {
		t.Errorf("%+v", c)
	}
	if c := all[0]; c.OverrideAfter != nil || *c.OverrideBefore.Limit != 7 || !c.OverrideBefore.Until.Equal(until) || c.OverrideBefore.Note != "vip" || c.Before != nil {
		t.Errorf("%+v", c)
	}
	if some, err := p.History(t.Context(), "", 2); err != nil || len(some) != 2 || some[0].Version != 3 {
		t.Errorf("%+v, %v", some, err)
	}
	if none, err := p.History(t.Context(), "other", 2); err != nil || len(none) != 0 {
		t.Errorf("%+v, %v", none, err)
	}
}

// TestAt: at each time between changes the database and the memory have had what they have had
// then, also for a part of the history.
func TestAt(t *testing.T) {
	t.Parallel()
	pool, memory := testworld.NewPool(t), must.OK(policies.New())(t)
	stored := open(t, pool, policies.Config{})
	more := login
	more.Limit *= 2
	ended := policies.Override{Policy: "login", Key: "bot-1", Limit: new(3.0), Until: time.Now().Add(-time.Hour)}
	limited := policies.Override{Policy: "login", Key: "bot-1", Limit: new(7.0)}
	network := policies.Override{Policy: "login", Key: "bot-", Match: policies.MatchPrefix, Blocked: true}
	exempt := policies.Override{Policy: "login", Key: "*", Match: policies.MatchPattern, Unlimited: true}
	steps := []struct {
		edit policies.Edit
		want string
	}{
		{policies.Edit{SetOverrides: []policies.Override{{Policy: "other", Key: "bot-1", Unlimited: true}}}, "none none"},
		{policies.Edit{Set: []policies.Stored{{Policy: login}}}, "5 none"},
		{policies.Edit{SetOverrides: []policies.Override{ended}}, "5 none"},
		{policies.Edit{SetOverrides: []policies.Override{limited}}, "5 bot-1: 7"},
		{policies.Edit{Set: []policies.Stored{{Policy: more}}, SetOverrides: []policies.Override{{Policy: "login", Key: "bot-2", Limit: new(1.0)}}}, "10 bot-1: 7"},
		{policies.Edit{SetOverrides: []policies.Override{network, {Policy: "login", Key: "bat-", Match: policies.MatchPrefix, Unlimited: true}}}, "10 bot-: blocked"},
		{policies.Edit{SetOverrides: []policies.Override{exempt}}, "10 *: unlimited"},
		{policies.Edit{DeleteOverrides: []policies.Override{exempt, limited}}, "10 bot-: blocked"},
		{policies.Edit{SetOverrides: []policies.Override{{Policy: "login", Key: "bot-1", Limit: new(9.0)}}}, "10 bot-: blocked"},
		{policies.Edit{DeleteOverrides: []policies.Override{network}}, "10 bot-1: 9"},
		{policies.Edit{Delete: []string{"login"}}, "none bot-1: 0"},
	}
	var times []time.Time
	for _, s := range steps {
		apply(t, memory, s.edit)
		apply(t, stored.Policies, s.edit)
		times = append(times, testworld.Value[time.Time](t, pool, `SELECT clock_timestamp()`))
	}
	check := func(name string, p *policies.Policies, from int) {
		t.Helper()
		for i := from; i < len(steps); i++ {
			policy, o, err := p.At(t.Context(), "login", "bot-1", times[i])
			got := []string{"none", "none"}
			if policy != nil {
				got[0] = fmt.Sprint(policy.Limit)
			} else {
				policy = new(policies.Stored)
			}
			switch {
			case o != nil && o.Limit != nil:
				effective, _ := o.Apply(policy.Policy)
				got[1] = fmt.Sprint(o.Key, ": ", effective.Limit)
			case o != nil:
				got[1] = o.Key + map[bool]string{true: ": blocked", false: ": unlimited"}[o.Blocked]
			}
			if text := strings.Join(got, " "); text != steps[i].want || err != nil {
				t.Errorf("%s after step %d: %s, %v, want %s", name, i, text, err, steps[i].want)
			}
		}
	}
	check("memory", memory, 0)
	check("database", stored.Policies, 0)
	testworld.Exec(t, pool, `DELETE FROM pglimit_policy_history WHERE changed_at < $1`, times[3])
	check("a part", stored.Policies, 3)
	for _, name := range []string{"", "A"} {
		if _, _, err := memory.At(t.Context(), name, "k", times[0]); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("policy %q: %v", name, err)
		}
	}
	if _, _, err := memory.At(t.Context(), "p", "", times[0]); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("no key: %v", err)
	}
}

// TestBound: there are at most 100,000 overrides. With the longest keys and notes they take
// little memory, also at a change. It does not run in parallel: it measures the heap.
func TestBound(t *testing.T) {
	pages := &counted{name: "Overrides"}
	pool := testworld.Connect(t, testworld.NewDatabase(t), func(c *pgxpool.Config) { c.ConnConfig.Tracer = pages })
	heap := func() (rest, peak int) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc >> 20), int(m.HeapSys >> 20) // the latter does not shrink
	}
	rest, peak := heap()
	logger, logs := newLog()
	p := open(t, pool, policies.Config{Logger: logger, DisableListen: true, PollEvery: time.Hour})
	// Without the triggers, whose history would take a while.
	testworld.Exec(t, pool, `BEGIN; SET LOCAL session_replication_role = replica;
		INSERT INTO pglimit_override (policy, key, unlimited, note) SELECT 'login', rpad('k' || i, 1024, 'k'), true, rpad('', 1000, 'n') FROM generate_series(100001, 199999) AS i; COMMIT`)
	apply(t, p.Policies, policies.Edit{SetOverrides: []policies.Override{{Policy: "login", Key: "last", Unlimited: true}}})
	before := pages.n.Load()
	// One that exists can still be changed.
	apply(t, p.Policies, policies.Edit{SetOverrides: []policies.Override{{Policy: "login", Key: "last", Unlimited: true, Note: "changed"}}})
	if n := pages.n.Load() - before; n != 0 {
		t.Errorf("a change was loaded with %d statements for all overrides", n)
	}
	if r, k := heap(); r > rest+25 || k > peak+50 {
		t.Errorf("the heap grew from %d to %d MB, and at most from %d to %d", rest, r, peak, k)
	}
	_, err := p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "login", Key: "z", Unlimited: true}}})
	if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "at most 100,000 overrides") || !strings.Contains(err.Error(), "delete those that have ended") {
		t.Errorf("%v", err)
	}
	var answer *pgconn.PgError
	if _, err := pool.Exec(t.Context(), `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('login', 'z', true)`); !errors.As(err, &answer) || answer.Code != "54000" || answer.Hint == "" {
		t.Errorf("%v", err)
	}
	expectLog(t, logs)
	// Rows that came past the trigger: the last one by policy and key does not apply.
	testworld.Exec(t, pool, `BEGIN; SET LOCAL session_replication_role = replica; INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('login', 'z', true); COMMIT`)
	p = open(t, pool, policies.Config{Logger: logger, DisableListen: true, PollEvery: time.Hour})
	if n := p.OverrideCount("login"); n != 100_000 {
		t.Errorf("%d overrides are loaded", n)
	}
	if _, unlimited, err := p.For("login", "z"); !errors.Is(err, policies.ErrNoPolicy) || unlimited {
		t.Error(unlimited, err)
	}
	expectLog(t, logs, "too many overrides", "most=100000")
}

// TestChangesAreAll: a process that loads what has changed since it looked has what one has
// that loads all.
func TestChangesAreAll(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := open(t, pool, policies.Config{DisableListen: true, PollEvery: time.Hour})
	const insert = `INSERT INTO pglimit_override (policy, key, limit_units) VALUES `
	for i, sql := range []string{
		`INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 1, 1), ('q', 'gcra', 2, 1);` + insert + `('p', 'a', 5), ('p', 'b', 6), ('q', 'a', 7)`,
		`UPDATE pglimit_override SET limit_units = 8 WHERE policy = 'p' AND key = 'a';` + insert + `('p', 'c', 9), ('r', 'a', 3)`,
		`UPDATE pglimit_override SET burst = 0.1::float8 + 0.2::float8, until = '2100-01-02 03:04:05.678901+00', shadow = true WHERE key = 'a'; UPDATE pglimit_override SET shadow = false WHERE key = 'b'`,
		`UPDATE pglimit_override SET key = 'd' WHERE policy = 'p' AND key = 'c'; UPDATE pglimit_override SET policy = 'q' WHERE key = 'b'`,
		`DELETE FROM pglimit_override WHERE policy = 'p' AND key = 'a';` + insert + `('p', 'a', 4); UPDATE pglimit_override SET limit_units = NULL, burst = NULL, shadow = NULL, unlimited = true WHERE policy = 'q'`,
		`BEGIN; UPDATE pglimit_override SET limit_units = 7 WHERE key = 'd'; ROLLBACK; DELETE FROM pglimit_policy WHERE name = 'q'; DELETE FROM pglimit_override WHERE policy = 'q'`,
		insert + `('p', 'a', 99) ON CONFLICT DO NOTHING; UPDATE pglimit_override SET limit_units = 12 WHERE key = 'd'`,
		// A key is forgotten.
		`BEGIN; DELETE FROM pglimit_override WHERE key = 'd'; UPDATE pglimit_override SET limit_units = 13 WHERE policy = 'p' AND key = 'a'; COMMIT; DELETE FROM pglimit_policy_history WHERE key = 'd'`,
		insert + `('p', 'e', 5), ('p', 'f', 6)`,
		`BEGIN; UPDATE pglimit_override SET limit_units = 14 WHERE policy = 'p' AND key = 'a'; DELETE FROM pglimit_override WHERE key = 'e'; COMMIT; DELETE FROM pglimit_policy_history WHERE key = 'e'`,
		`BEGIN; DELETE FROM pglimit_override WHERE key = 'f'; DELETE FROM pglimit_policy_history WHERE key = 'f'; UPDATE pglimit_override SET limit_units = 15 WHERE policy = 'p'; COMMIT`,
		insert + `('p', 'g', 5)`,
		`DELETE FROM pglimit_override WHERE key = 'g'; TRUNCATE pglimit_policy_history`,
		insert + `('p', 'h', 5)`,
		// Another history, as after a restore, has the same ids and versions.
		`BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM pglimit_override WHERE key = 'h'; UPDATE pglimit_policy_history SET changed_at = changed_at + '1 s'; COMMIT`,
		`INSERT INTO pglimit_override (policy, key, unlimited) SELECT 'p', 'many' || i, true FROM generate_series(1, 6000) AS i`,
		`DELETE FROM pglimit_override WHERE key LIKE 'many%'`,
		`INSERT INTO pglimit_override (policy, key, match, unlimited) VALUES ('p', 'a', 'prefix', true), ('p', 'b', 'prefix', true), ('r', '?', 'pattern', true)`,
		`UPDATE pglimit_override SET key = 'c' WHERE key = 'b' AND match = 'prefix'; UPDATE pglimit_override SET match = 'pattern' WHERE policy = 'p' AND match = 'prefix' AND key = 'a'`,
		`UPDATE pglimit_override SET until = '2000-01-01' WHERE policy = 'r' AND match <> ''; DELETE FROM pglimit_override WHERE policy = 'p' AND match = 'prefix'`,
		`DELETE FROM pglimit_override WHERE match <> ''`,
	} {
		testworld.Exec(t, pool, sql)
		apply(t, p.Policies, policies.Edit{SetOverrides: []policies.Override{{Policy: "p", Key: "tick", Limit: new(float64(i + 1))}}})
		all := open(t, pool, policies.Config{DisableListen: true, PollEvery: time.Hour})
		for _, o := range []*opened{p, all} {
			must.Succeed(t, o.Default(limiter.Policy{Name: "q", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}, limiter.Policy{Name: "r", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}))
		}
		for _, name := range []string{"p", "q", "r"} {
			for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "tick", "many1", "many6000"} {
				got, free, err := p.For(name, key)
				want, wantFree, wantErr := all.For(name, key)
				if got != want || free != wantFree || err != nil || wantErr != nil {
					t.Errorf("%s\n%s of %s: %+v, %v, %v; want %+v, %v, %v", sql, key, name, got, free, err, want, wantFree, wantErr)
				}
			}
			if got, want := p.OverrideCount(name), all.OverrideCount(name); got != want {
				t.Errorf("%s\n%d overrides of %s, want %d", sql, got, name, want)
			}
		}
	}
}

// TestVersionOfAnotherServer: a transaction of another server has the number of the one that
// raised the version last.
func TestVersionOfAnotherServer(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	tx := must.OK(pool.Begin(t.Context()))(t)
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	must.OK(tx.Exec(t.Context(), `UPDATE pglimit_policy_version SET version = 5, changed_in = pg_current_xact_id()::text || ' 1'`))(t)
	must.OK(tx.Exec(t.Context(), `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('a', 'gcra', 1, 1)`))(t)
	testworld.Commit(t, tx)
	if v := version(t, pool); v != 6 {
		t.Errorf("version %d, want 6", v)
	}
}
