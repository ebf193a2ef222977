package stores

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestIdempotencyKey: under one key, calls of stores.sql, at once or one after the other, and
// requests of the Go library count once; each sees the other's admission, until it is forgotten.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	login := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, block_for_s) VALUES ('blocking', 'fixed_window', 5, 3600, 3600)`)
	l := testworld.NewLimiter(t, pool, nil)
	const allow = `SELECT replayed FROM pglimit_store.allow('login', $1, 2, $2)`
	do := func(id string) limiter.Result {
		t.Helper()
		return must.OK(l.Do(t.Context(), limiter.Request{Policy: login, Key: "alice", Cost: 2, IdempotencyKey: id}))(t)
	}

	if testworld.Value[bool](t, pool, allow, "alice", "sql first") || !do("sql first").Replayed {
		t.Error("the library does not see what SQL admitted")
	}
	if do("go first").Replayed || !testworld.Value[bool](t, pool, allow, "alice", "go first") {
		t.Error("SQL does not see what the library admitted")
	}
	if level := testworld.Value[float64](t, pool, `SELECT level FROM pglimit.check('login', 'alice', 0)`); level != 4 {
		t.Errorf("two admissions of cost 2: level %v", level)
	}

	// The second has looked for the key before the first commits. It waits, and then sees it, also if
	// the first has taken the room of both.
	for key, call := range map[string]struct {
		sql   string
		level float64
	}{
		"bob":   {allow, 2},
		"carol": {`SELECT replayed AND allowed FROM pglimit_store.allow('login', $1, 3, $2)`, 3},
		"dave":  {`SELECT replayed AND allowed FROM pglimit_store.acquire('fixed_window', 'login', $1, 3, 5, 3600, $2)`, 3},
		"erin":  {`SELECT replayed AND allowed FROM pglimit_store.allow('blocking', $1, 3, $2)`, 0},
	} {
		first := must.OK(pool.Begin(t.Context()))(t)
		must.OK(first.Exec(t.Context(), call.sql, key, "at once"))(t)
		replayed := make(chan bool)
		go func() {
			var seen bool
			if err := pool.QueryRow(t.Context(), call.sql, key, "at once").Scan(&seen); err != nil {
				t.Error(err)
			}
			replayed <- seen
		}()
		testworld.AwaitBlocked(t, pool)
		must.Succeed(t, first.Commit(t.Context()))
		seen := testworld.Receive(t, replayed, "the second call's answer")
		if level := testworld.Value[float64](t, pool, `SELECT level FROM pglimit.check('login', $1, 0)`, key); !seen || level != call.level {
			t.Errorf("%s: two calls at once under one key: the second is replayed: %t, level %v", key, seen, level)
		}
	}
	if testworld.Value[bool](t, pool, `SELECT reason = 'blocked' FROM pglimit.check('blocking', 'erin', 5)`) {
		t.Error("a denial that was none has begun a block")
	}

	// A denial is not remembered, and an admission only for a time.
	if testworld.Value[bool](t, pool, `SELECT allowed FROM pglimit_store.allow('login', 'alice', 2, 'denied')`) {
		t.Error("6 of 5 units are allowed")
	}
	testworld.Exec(t, pool, `UPDATE pglimit_reservation SET forget_at_us = 1 WHERE idempotency_key = 'at once'`)
	if testworld.Value[bool](t, pool, allow, "bob", "at once") {
		t.Error("a forgotten key is replayed")
	}

	for sql, want := range map[string]string{
		`SELECT pglimit_store.allow('login', 'bob', 1, 'at once')`:                "used with cost 2",
		`SELECT pglimit_store.allow('login', 'bob', 1, '')`:                       "1 to 1,024 bytes",
		`SELECT pglimit_store.allow('none', 'bob')`:                               "none",
		`SELECT pglimit_store.acquire('token_bucket', 'login', 'bob', 1, 5, 1)`:   "algorithm is 'token_bucket'",
		`SELECT pglimit_store.allow('queue', 'bob', idempotency_key => 'a turn')`: "leaky_bucket_queue",
	} {
		if _, err := pool.Exec(t.Context(), sql); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", sql, err, want)
		}
	}
}

// TestPostgREST: PostgREST can call every function, since no name is overloaded, by a JSON object of named
// arguments; and supabase.sql lets users only request, each for their own key.
func TestPostgREST(t *testing.T) {
	t.Parallel()
	pool, _ := database(t)
	overloaded := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(name, ', '), '') FROM (
		SELECT n.nspname || '.' || p.proname AS name FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
		WHERE n.nspname IN ('pglimit', 'pglimit_ask', 'pglimit_store', 'pglimit_rpc') GROUP BY 1 HAVING count(*) > 1) AS o`)
	if overloaded != "" {
		t.Errorf("overloaded: %s", overloaded)
	}
	// Roles are the server's, and the tests share it: these are named after the database.
	member, stranger := roles(t, pool)
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pg_proc WHERE pronamespace = 'pglimit_rpc'::regnamespace
		AND (NOT prosecdef OR proconfig IS NULL OR has_function_privilege($1, oid, 'EXECUTE'))`, stranger); n != 0 {
		t.Errorf("%d functions of pglimit_rpc run without their owner's rights or a search_path, or for strangers", n)
	}
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, askers)
		VALUES ('rpc', 'fixed_window', 2, 3600, true), ('supabase', 'fixed_window', 2, 3600, false)`)

	// As PostgREST does: a transaction, the user's role and claims, one call.
	call := func(role, claims, access, sql string, arguments string) error {
		tx := must.OK(pool.Begin(t.Context()))(t)
		defer func() { _ = tx.Rollback(t.Context()) }()
		for _, s := range []string{"SET TRANSACTION " + access, "SET LOCAL ROLE " + role, "SET LOCAL request.jwt.claims = '" + claims + "'"} {
			must.OK(tx.Exec(t.Context(), s))(t)
		}
		if _, err := tx.Exec(t.Context(), sql, arguments); err != nil {
			return err
		}
		return tx.Commit(t.Context())
	}
	// The body of a call, spread into arguments as PostgREST does.
	const ask = `SELECT 1 / (answer -> 'allowed')::bool::int FROM json_to_record($1::json) AS body (name text), LATERAL pglimit_rpc.allow(name => body.name) AS answer`
	const gate = `SELECT pglimit_rpc.check_request() WHERE $1 <> ''`
	for i, c := range []struct{ role, claims, access, sql, want string }{
		{member, `{"sub":"alice"}`, "READ WRITE", ask, ""},
		{member, `{"sub":"alice"}`, "READ WRITE", ask, ""},
		{member, `{"sub":"alice"}`, "READ WRITE", ask, "division by zero"}, // denied
		{member, `{"sub":"bob"}`, "READ WRITE", ask, ""},
		{member, `{"role":"anon"}`, "READ WRITE", ask, "no token of a user"},
		{member, ``, "READ WRITE", ask, "no token of a user"},
		{member, `{"sub":"alice"}`, "READ WRITE", `SELECT pglimit_ask.allow('rpc', $1)`, "permission denied"},
		{member, `{"sub":"alice"}`, "READ WRITE", `SELECT pglimit.reset('rpc', $1)`, "permission denied"},
		{stranger, `{"sub":"alice"}`, "READ WRITE", ask, "permission denied"},
		{member, `{"sub":"alice"}`, "READ WRITE", gate, ""},
		{member, `{"sub":"alice"}`, "READ WRITE", gate, ""},
		{member, `{"sub":"alice"}`, "READ WRITE", gate, "SQLSTATE PGRST"},
		{member, `{"sub":"alice"}`, "READ ONLY", gate, ""},
		{member, ``, "READ WRITE", gate, ""},
		{member, `{"sub":"bob"}`, "READ WRITE", gate, ""},
	} {
		err := call(c.role, c.claims, c.access, c.sql, `{"name":"rpc"}`)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("call %d, %s as %s %s: %v, want %q", i+1, c.sql, c.role, c.claims, err, c.want)
		}
	}
}

// roles makes a role with the rights of Supabase's authenticated, and one without.
func roles(t *testing.T, pool *pgxpool.Pool) (member, stranger string) {
	t.Helper()
	name := "stores_" + strings.ReplaceAll(testworld.Value[string](t, pool, `SELECT md5(current_database())`), "-", "")[:12]
	member, stranger = name+"_member", name+"_stranger"
	for _, role := range []string{member, stranger} {
		testworld.Exec(t, pool, "CREATE ROLE "+role)
		t.Cleanup(func() {
			ctx := context.Background()
			_, _ = pool.Exec(ctx, "DROP OWNED BY "+role)
			if _, err := pool.Exec(ctx, "DROP ROLE "+role); err != nil {
				t.Error(err)
			}
		})
	}
	testworld.Exec(t, pool, "GRANT USAGE ON SCHEMA pglimit_rpc TO "+member)
	testworld.Exec(t, pool, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pglimit_rpc TO "+member)
	return member, stranger
}
