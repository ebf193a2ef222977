package functions

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// attempts is the base of histories of attempts.
var attempts = limiter.Policy{Name: "attempts", Algorithm: limiter.Attempts, Limit: 1, Period: 10 * time.Second, BlockFor: time.Second}

// TestFunctionsAttemptAsGo: attempts and their reports by functions, with the policy in the call
// and by its name, answer as the library does and leave the same rows.
func TestFunctionsAttemptAsGo(t *testing.T) {
	t.Parallel()
	d := search.Draw{Operations: search.Without(search.Attempts, "begin", "commit", "rollback", "sweep"), Shadows: true}
	testworld.SearchFunctions(t, d, 40, testworld.Functions{}, attempts)
	d.Names = 1 // without overrides: most drawn ones make no whole limit
	testworld.SearchFunctions(t, d, 40, testworld.Functions{ByName: true}, attempts)
}

// TestFunctionsAttemptInTx: a report counts with the transaction that it is part of, and a
// reported ticket is an error of both reports.
func TestFunctionsAttemptInTx(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, block_for_s) VALUES ('login', 'attempts', 2, 3600, 60)`)
	testworld.Exec(t, pool, `CREATE TABLE session (name text)`)
	begin := func(source string) string {
		t.Helper()
		return testworld.Value[string](t, pool, `SELECT ticket FROM pglimit.attempt('login', 'alice', $1, ttl_s => 3600)`, source)
	}
	login := func(id string, commit bool) {
		t.Helper()
		tx := must.OK(pool.Begin(ctx))(t)
		must.OK(tx.Exec(ctx, `INSERT INTO session VALUES ('alice')`))(t)
		must.OK(tx.Exec(ctx, `SELECT pglimit.succeeded($1)`, id))(t)
		if commit {
			must.Succeed(t, tx.Commit(ctx))
		} else {
			must.Succeed(t, tx.Rollback(ctx))
		}
	}
	home := begin("home")
	login(home, false)
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_attempt WHERE source = 'home'`); n != 0 {
		t.Error("a success that was rolled back is remembered")
	}
	login(home, true)
	for _, report := range []string{"succeeded", "failed"} {
		var none string
		err := pool.QueryRow(ctx, `SELECT coalesce((pglimit.`+report+`($1))::text, '')`, home).Scan(&none)
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.Code != "P0002" || answer.Hint == "" {
			t.Errorf("%s again: %v", report, err)
		}
	}
	tx := must.OK(pool.Begin(ctx))(t)
	rolledBack := ""
	must.Succeed(t, tx.QueryRow(ctx, `SELECT ticket FROM pglimit.attempt('login', 'alice', 'cafe')`).Scan(&rolledBack))
	must.Succeed(t, tx.Rollback(ctx))
	var answer *pgconn.PgError
	if _, err := pool.Exec(ctx, `SELECT pglimit.failed($1)`, rolledBack); !errors.As(err, &answer) || answer.Code != "P0002" {
		t.Errorf("an attempt that was rolled back: %v", err)
	}
	for range 2 {
		testworld.Exec(t, pool, `SELECT pglimit.failed($1)`, begin("cafe"))
	}
	if reason := testworld.Value[string](t, pool, `SELECT reason FROM pglimit.attempt('login', 'alice', 'cafe')`); reason != "blocked" {
		t.Errorf("after two failures: %s", reason)
	}
	if !testworld.Value[bool](t, pool, `SELECT allowed FROM pglimit.attempt('login', 'alice', 'home')`) {
		t.Error("the owner is denied at a place that is known")
	}
}

// TestFunctionsAttemptOverrides: a shadow policy lets pass what it would have denied, an override
// exempts or blocks a key, denials are counted, and block, unblock and reset serve attempts.
func TestFunctionsAttemptOverrides(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, block_for_s, count_denials) VALUES ('login', 'attempts', 1, 3600, 60, true)`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited, blocked, shadow) VALUES
		('login', 'free', true, false, NULL), ('login', 'banned', false, true, NULL), ('login', 'shadow', false, false, true)`)
	is := func(want, call string) {
		t.Helper()
		if got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', a.allowed, a.reason, a.shadowed, left(a.ticket, 9)) FROM `+call+` AS a`); got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
	for _, key := range []string{"alice", "free", "shadow"} {
		testworld.Exec(t, pool, `SELECT pglimit.failed(a.ticket) FROM pglimit.attempt('login', $1) AS a`, key)
	}
	is("f blocked f", `pglimit.attempt('login', 'alice')`)
	is("f blocked f", `pglimit.attempt('login', 'banned')`)
	is("t f uncounted", `pglimit.attempt('login', 'free')`)
	is("t blocked t uncounted", `pglimit.attempt('login', 'shadow')`)
	testworld.Exec(t, pool, `SELECT pglimit.succeeded(a.ticket) FROM pglimit.attempt('login', 'shadow') AS a`)
	is("t blocked t uncounted", `pglimit.attempt('login', 'shadow')`) // a report of it changes nothing
	if n := testworld.Value[int](t, pool, `SELECT sum(denials)::int FROM pglimit_denial WHERE policy = 'login'`); n != 5 {
		t.Errorf("%d denials were counted", n)
	}
	testworld.Exec(t, pool, `SELECT pglimit.unblock('login', 'alice')`)
	is("t f attempts:", `pglimit.attempt('login', 'alice')`)
	testworld.Exec(t, pool, `SELECT pglimit.reset('login', 'alice'), pglimit.block('login', 'alice', 60)`)
	is("f blocked f", `pglimit.attempt('login', 'alice')`)
	testworld.Exec(t, pool, `SELECT pglimit.reset_with('attempts', 'login', 'alice')`)
	is("t f attempts:", `pglimit.attempt('login', 'alice')`)
}

// TestFunctionsForgedTickets: an ID made of the text of a place, or of the end of a ticket, is none.
func TestFunctionsForgedTickets(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, burst, block_for_s) VALUES ('login', 'attempts', 9, 3600, 3, 60)`)
	texts := []string{"AAAAAAAAAAAAAAAA", "9999999999999999", "9999999999999998"}
	for _, from := range texts {
		testworld.Exec(t, pool, `SELECT pglimit.attempt('login', 'k', $1, ttl_s => 3600)`, from)
	}
	row := func() string {
		return testworld.Value[string](t, pool, `SELECT t::text FROM pglimit_attempt AS t`)
	}
	before := row()
	texts = append(texts, testworld.Value[[]string](t, pool, `SELECT tickets FROM pglimit_attempt`)...)
	for i, text := range texts {
		if i%3 == 0 && i > 0 {
			continue // the ID of a ticket
		}
		for _, report := range []string{"succeeded", "failed"} {
			_, err := pool.Exec(t.Context(), `SELECT pglimit.`+report+`('attempts:' || $1 || ':login:aw')`, text)
			var answer *pgconn.PgError
			if !errors.As(err, &answer) || answer.Code != "P0002" {
				t.Errorf("%s of %s: %v", report, text, err)
			}
		}
	}
	if after := row(); after != before {
		t.Errorf("%s, before it %s", after, before)
	}
}
