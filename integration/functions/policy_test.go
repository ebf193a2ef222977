package functions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
	"github.com/pglimit/pglimit/policies"
)

// byName are calls by a policy's name, of every function that takes one.
var byName = []string{"allow(%s, 'k')", "allow_up_to(%s, 'k', 2)", "check(%s, 'k', 0)", "usage(%s, 'k')", "charge(%s, 'k')", "refund(%s, 'k')", "reserve(%s, 'k', 1, 60)", "reserve_up_to(%s, 'k', 2, 60, estimate => true)",
	"block(%s, 'k', 1)", "unblock(%s, 'k')", "reset(%s, 'k')"}

// TestFunctionsByNameRefuse: a name without a policy, and other bad arguments, are
// refused. The error has the next step, and nothing is written.
func TestFunctionsByNameRefuse(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Minute}, false)
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 5, Period: time.Minute}, false)
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "wien", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Day, TimeZone: "CEST"}, false)
	// An override alone is not a policy.
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('compiled', 'k', true), ('login', 'free', true)`)
	refuses := func(call, code, message, hint string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), `SELECT * FROM pglimit.`+call)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != code || !strings.HasPrefix(pg.Message, "pglimit: ") || !strings.Contains(pg.Message, message) || !strings.Contains(pg.Hint, hint) {
			t.Errorf("%s: got %v (hint %q), want %s with %q and the hint %q", call, err, hintOf(pg), code, message, hint)
		}
	}
	for _, call := range byName {
		for _, name := range []string{"'logins'", "'compiled'", "'log'", "'login '"} {
			message, code, hint := "there is no policy of that name", "42704", "pglimit policy set"
			if strings.Contains(name, " ") {
				message, code, hint = "must match ^[a-z0-9]", "22023", "pglimit_policy"
			}
			refuses(fmt.Sprintf(call, name), code, "name is "+name+": "+message, hint)
		}
		refuses(fmt.Sprintf(call, "'nobody'"), "42704", "name is 'nobody'", "INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s)")
		refuses(fmt.Sprintf(call, "NULL"), "22023", "name is NULL", "pglimit_policy")
		refuses(strings.Replace(fmt.Sprintf(call, "'login'"), "'k'", "''", 1), "22023", "key is ''", "constant")
		refuses(strings.Replace(fmt.Sprintf(call, "'login'"), "'k'", "NULL", 1), "22023", "key is NULL", "constant")
	}
	for call, message := range map[string]string{
		`allow('login', 'k', 0)`:                   "cost is 0: must be positive",
		`allow('login', 'k', 'NaN')`:               "cost is NaN",
		`allow('login', 'free', -1)`:               "cost is -1: must be positive",
		`check('login', 'free', -1)`:               "cost is -1: must be 0, or positive",
		`reserve('login', 'k')`:                    "ttl_s is NULL",
		`reserve('login', 'free', 1, 0)`:           "ttl_s is 0",
		`block('login', 'k', 0)`:                   "for_s is 0",
		`allow('login', 'k', now => '1900-01-01')`: "must be from 1970 to 9999",
		`allow('wien', 'k')`:                       "time_zone is 'CEST': is not a name of the IANA time zone database",
	} {
		refuses(call, "22023", message, "")
	}
	refuses(`refund('queue', 'k')`, "0A000", "refund is not for leaky_bucket_queue", "leaky_bucket")
	refuses(`reserve('queue', 'k', 1, 60)`, "0A000", "reserve is not for leaky_bucket_queue", "leaky_bucket")
	if got := testworld.Contents(t, pool); strings.Count(got, "no rows") != 6 {
		t.Errorf("something was written:\n%s", got)
	}
}

// TestFunctionsByNameWithoutTypes: clients that send parameters without types, or as texts,
// reach the functions by name.
func TestFunctionsByNameWithoutTypes(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	must.Succeed(t, migrations.Functions.Up(t.Context(), pool))
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "login", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 1000 * time.Hour}, false)
	left := func() float64 {
		return testworld.Value[float64](t, pool, `SELECT round(remaining) FROM pglimit.check(name => 'login', key => 'alice', cost => 0)`)
	}
	for _, call := range []string{
		`PREPARE a AS SELECT allowed FROM pglimit.allow($1, $2, $3); EXECUTE a ('login', 'alice', '1'); DEALLOCATE a`,
		`PREPARE a AS SELECT allowed FROM pglimit.allow_up_to($1, $2, $3); EXECUTE a ('login', 'alice', '1'); DEALLOCATE a`,
		`PREPARE a AS SELECT allowed FROM pglimit.charge($1, $2, $3); EXECUTE a ('login', 'alice', '1'); DEALLOCATE a`,
		`PREPARE a AS SELECT allowed FROM pglimit.reserve($1, $2, $3, $4); EXECUTE a ('login', 'alice', '1', '60'); DEALLOCATE a`,
		`SELECT pglimit.allow('login', 'alice', '1')`,
		`SELECT pglimit.allow('login', 'alice')`,
		`SELECT pglimit.allow('login'::varchar, 'alice'::varchar, 1::numeric)`,
		`SELECT pglimit.allow('login'::name, 'alice'::char(5), 1::smallint)`,
		`SELECT pglimit.allow(key => 'alice', name => 'login', cost => 1)`,
		`SELECT pglimit.token_bucket('login', 'alice', 1, 1000, 3600000)`,
		`SELECT pglimit.allow_up_to_with('token_bucket', 'login', 'alice', '1', limit_units => 1000, period_s => 3600000)`,
	} {
		before := left()
		testworld.Exec(t, pool, call, pgx.QueryExecModeSimpleProtocol)
		if got := left(); got != before-1 {
			t.Errorf("%s took %v", call, before-got)
		}
	}
	for _, verb := range []string{"check", "refund", "block"} {
		testworld.Exec(t, pool, fmt.Sprintf(`PREPARE a AS SELECT pglimit.%s($1, $2, $3); EXECUTE a ('login', 'bob', '1'); DEALLOCATE a`, verb), pgx.QueryExecModeSimpleProtocol)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		var allowed bool
		if err := pool.QueryRow(t.Context(), `SELECT allowed FROM pglimit.reserve($1, $2, $3, $4)`, mode, "login", "alice", 1, 60).Scan(&allowed); err != nil || !allowed {
			t.Errorf("%v: %v, %v", mode, allowed, err)
		}
	}
	for _, driver := range testworld.SQLDrivers {
		db := testworld.ConnectSQL(t, driver, address)
		for _, args := range [][]any{{"login", "alice", 1}, {"login", "alice", 1.5}, {[]byte("login"), "alice", "1"}} {
			if b, ok := args[0].([]byte); ok && driver != "postgres" {
				args[0] = string(b) // only lib/pq sends bytes as a text
			}
			var allowed bool
			if err := db.QueryRowContext(t.Context(), `SELECT allowed FROM pglimit.check($1, $2, $3)`, args...).Scan(&allowed); err != nil || !allowed {
				t.Errorf("%s, %v: %v, %v", driver, args, allowed, err)
			}
		}
	}
	// No two functions have one name.
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM (SELECT proname FROM pg_proc WHERE pronamespace IN ('pglimit'::regnamespace, 'pglimit_ask'::regnamespace)
		GROUP BY pronamespace, proname HAVING count(*) > 1) AS twice`); n > 0 {
		t.Errorf("%d names have several functions", n)
	}
}

// TestFunctionsOverrideAsGo: the functions give a key the limit and burst that the library
// gives it, whatever its policy and override, to the last bit.
func TestFunctionsOverrideAsGo(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{DisableListen: true}))(t)
	defer live.Close()
	numbers := []float64{1e-9, 0.1, 1.1, 3, 10, 1000, 1 << 53}
	for _, algorithm := range []limiter.Algorithm{limiter.GCRA, limiter.FixedWindow} {
		for _, limit := range numbers {
			for _, burst := range append([]float64{0}, numbers...) {
				edit := policies.Edit{Set: []policies.Stored{{Policy: limiter.Policy{Name: "p", Algorithm: algorithm, Limit: limit, Burst: burst, Period: time.Hour}}}}
				if algorithm == limiter.FixedWindow {
					edit.Set[0].Burst = 0
				}
				for i, n := range numbers {
					edit.SetOverrides = append(edit.SetOverrides,
						policies.Override{Policy: "p", Key: fmt.Sprint("limit", i), Limit: &n},
						policies.Override{Policy: "p", Key: fmt.Sprint("factor", i), Factor: &n},
						policies.Override{Policy: "p", Key: fmt.Sprint("zero", i), Limit: &n, Burst: new(float64)},
					)
					if algorithm != limiter.FixedWindow {
						edit.SetOverrides = append(edit.SetOverrides,
							policies.Override{Policy: "p", Key: fmt.Sprint("burst", i), Burst: &n},
							policies.Override{Policy: "p", Key: fmt.Sprint("both", i), Factor: &numbers[2], Burst: &n})
					}
				}
				must.OK(live.Apply(t.Context(), edit))(t)
				rows := must.OK(pool.Query(t.Context(), `SELECT o.key, p.limit_units, coalesce(p.burst, 0) FROM pglimit_override AS o, pglimit._policy_of(o.policy, o.key) AS p`))(t)
				n := 0
				for ; rows.Next(); n++ {
					var key string
					var limit, burst float64
					must.Succeed(t, rows.Scan(&key, &limit, &burst))
					if p, _, err := live.For("p", key); err != nil || p.Limit != limit || p.Burst != burst {
						t.Errorf("%+v, override %s: in Go %v, %v, in SQL %v, %v: %v", edit.Set[0].Policy, key, p.Limit, p.Burst, limit, burst, err)
					}
				}
				if rows.Err() != nil || n < len(edit.SetOverrides) {
					t.Fatalf("%d rows: %v", n, rows.Err())
				}
			}
		}
	}
}

// TestFunctionsAnchorAsGo: a window of the functions ends with the key's period, as in the
// library, and an anchor that changes within it does not change its end.
func TestFunctionsAnchorAsGo(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{DisableListen: true}))(t)
	defer live.Close()
	month := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 9, Calendar: limiter.Month, TimeZone: "Europe/Berlin", Anchor: "2024-01-15"}
	must.OK(live.Apply(t.Context(), policies.Edit{Set: []policies.Stored{{Policy: month}}}))(t)
	for i, c := range []struct{ anchor, at, ends string }{ // of the override
		{"", "2024-02-20T00:00:00+01:00", "2024-03-15T00:00:00+01:00"},
		{"2023-12-31T02:30", "2024-03-14T23:59:59+01:00", "2024-03-15T00:00:00+01:00"}, // it has begun
		{"2023-12-31T02:30", "2024-03-15T00:00:00+01:00", "2024-03-31T03:00:00+02:00"},
		{"2024-01-01", "2024-03-31T02:59:59+02:00", "2024-03-31T03:00:00+02:00"},
		{"2024-01-01", "2024-03-31T03:00:00+02:00", "2024-04-01T00:00:00+02:00"},
	} {
		edit := policies.Edit{SetOverrides: []policies.Override{{Policy: "month", Key: "sql", Limit: new(8.0), Anchor: c.anchor}, {Policy: "month", Key: "go", Limit: new(8.0), Anchor: c.anchor}}}
		must.OK(live.Apply(t.Context(), edit))(t)
		at := must.OK(time.Parse(time.RFC3339, c.at))(t)
		want := must.OK(time.Parse(time.RFC3339, c.ends))(t).Sub(at)
		l := testworld.NewLimiter(t, pool, &limiter.Config{Policies: live, Now: func() time.Time { return at }})
		r := must.OK(l.Allow(t.Context(), month, "go"))(t)
		seconds := testworld.Value[float64](t, pool, `SELECT reset_after_s FROM pglimit.allow('month', 'sql', now => $1)`, at)
		if r.ResetAfter != want || time.Duration(seconds)*time.Second != want {
			t.Errorf("step %d: ends in %v in Go and %v s in SQL, want %v", i, r.ResetAfter, seconds, want)
		}
	}
}

// TestFunctionsRuleAsGo: overrides with a Match are for the keys in SQL that they are for in Go,
// whatever the texts.
func TestFunctionsRuleAsGo(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{DisableListen: true}))(t)
	defer live.Close()
	random := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "b", "?", "*", ":", `\`, `\:`, "1.2.3.4", "1.2.3.0", "/24", "/0", "/129", "::", "2001:db8", "ffff:", "é", "%", "_", "0", ".", "\n", "%eth0"}
	text := func() (s string) {
		for range 1 + random.IntN(5) {
			s += pieces[random.IntN(len(pieces))]
		}
		return s
	}
	networks := []string{"0.0.0.0/0", "1.2.3.0/24", "1.2.3.4/32", "::/0", "2001:db8::/32", "::ffff:0:0:0/80"}
	var rules []policies.Override
	var keys []string
	for _, c := range conformance.Matches {
		rules, keys = append(rules, policies.Override{Key: c.Text, Match: c.Match}), append(keys, c.Key)
	}
	for range 40 {
		rules = append(rules, policies.Override{Key: text(), Match: policies.MatchPrefix}, policies.Override{Key: text(), Match: policies.MatchPattern})
		for range 5 {
			keys = append(keys, text())
		}
	}
	for _, n := range networks {
		rules = append(rules, policies.Override{Key: n, Match: policies.MatchCIDR})
	}
	edit := policies.Edit{}
	for i := range rules {
		rules[i].Policy, rules[i].Unlimited = fmt.Sprint("p", i), true
		edit.Set = append(edit.Set, policies.Stored{Policy: limiter.Policy{Name: rules[i].Policy, Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}})
	}
	edit.SetOverrides = rules
	must.OK(live.Apply(t.Context(), edit))(t)
	rows := must.OK(pool.Query(t.Context(), `SELECT o.policy, k, p.unlimited FROM pglimit_override AS o, unnest($1::text[]) AS k, pglimit._policy_of(o.policy, k) AS p`, keys))(t)
	n := 0
	for rows.Next() {
		var name, key string
		var in bool
		must.Succeed(t, rows.Scan(&name, &key, &in))
		if n++; in {
			n += 1 << 20
		}
		if _, want, err := live.For(name, key); in != want || err != nil {
			i, _ := strconv.Atoi(name[1:])
			t.Errorf("%s %q, key %q: in Go %v, in SQL %v: %v", rules[i].Match, rules[i].Key, key, want, in, err)
		}
	}
	if all, is := n&(1<<20-1), n>>20; rows.Err() != nil || all != len(rules)*len(keys) || is < 300 {
		t.Errorf("%d pairs, of which %d match: %v", all, is, rows.Err())
	}
}

// TestFunctionsRules: what overrides with a Match decide, by the database's clock, in the order
// that the library has.
func TestFunctionsRules(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 5, Period: time.Hour}, false)
	testworld.StorePolicy(t, pool, limiter.Policy{Name: "ghost", Algorithm: limiter.GCRA, Limit: 5, Period: time.Hour, Shadow: true}, false)
	testworld.Exec(t, pool, `UPDATE pglimit_policy SET count_denials = true`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, match, unlimited, blocked, until) VALUES
		('p', 'bot-', 'prefix', false, true, '2030-01-01'), ('p', 'bot-1', 'prefix', false, true, '2030-01-02'), ('p', '*x', 'pattern', false, true, NULL),
		('p', '10.0.0.0/8', 'cidr', true, false, '2030-01-01'), ('p', '0.0.0.0/0', 'cidr', false, true, NULL),
		('p', 'bot-vip', '', true, false, NULL), ('p', '10.0.0.7', '', false, true, NULL), ('ghost', 'bot-', 'prefix', false, true, NULL)`)
	// The policies know whether they have any, whatever changes, and their history does not.
	ruled := func(sql, want string) {
		t.Helper()
		before := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_policy_history WHERE key IS NULL`)
		testworld.Exec(t, pool, sql)
		if got := testworld.Value[string](t, pool, `SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM pglimit_policy WHERE ruled`); got != want {
			t.Errorf("%s: ruled is %q, want %q", sql, got, want)
		}
		if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_policy_history WHERE key IS NULL`); n != before && !strings.Contains(sql, "INTO pglimit_policy ") {
			t.Errorf("%s: %d changes of policies", sql, n-before)
		}
	}
	ruled(`UPDATE pglimit_policy SET ruled = false`, "ghost p")
	ruled(`INSERT INTO pglimit_override (policy, key, match, blocked) VALUES ('later', 'a', 'prefix', true), ('later', 'b', 'prefix', true), ('plain', 'a', '', true)`, "ghost p")
	ruled(`INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, ruled) VALUES ('later', 'gcra', 1, 1, false), ('plain', 'gcra', 1, 1, true)`, "ghost later p")
	ruled(`DELETE FROM pglimit_override WHERE policy = 'later' AND key = 'a'`, "ghost later p")
	ruled(`UPDATE pglimit_override SET policy = 'plain' WHERE policy = 'later'`, "ghost p plain")
	ruled(`UPDATE pglimit_override SET match = '' WHERE policy = 'plain' AND key = 'b'`, "ghost p")
	ruled(`UPDATE pglimit_override SET match = 'prefix' WHERE policy = 'plain' AND key = 'b'`, "ghost p plain")
	ruled(`DELETE FROM pglimit_override WHERE policy = 'plain'`, "ghost p")
	for call, want := range map[string]string{ // allowed, granted, reason, seconds to retry after, shadowed
		`allow('p', 'bot-0', now => '2029-12-31 23:00+00')`:    "f 0 blocked 3600 f",
		`allow('p', 'bot-0', now => '2030-01-01 00:00+00')`:    "t 1 0 f",
		`allow('p', 'bot-1', now => '2029-12-31 23:00+00')`:    "f 0 blocked 90000 f",
		`allow('p', 'bot-1x')`:                                 "f 0 blocked f",
		`allow('p', 'bot-vip')`:                                "t 1 0 f",
		`allow('p', 'bot-vip-x')`:                              "f 0 blocked f",
		`allow_up_to('p', 'alice:10.1.2.3', 9)`:                "t 9 0 f",
		`allow('p', '10.0.0.7')`:                               "f 0 blocked f",
		`allow('p', '10.1.2.3', now => '2030-01-01 00:00+00')`: "f 0 blocked f",
		`check('p', '11.1.2.3', 0)`:                            "f 0 blocked f",
		`reserve('p', '11.1.2.3', 1, 60)`:                      "f 0 blocked f",
		`allow('p', 'alice')`:                                  "t 1 0 f",
		`charge('p', 'bot-2', 2)`:                              "t 2 0 f",
		`usage('p', 'bot-3')`:                                  "t 0 0 f",
		`allow('ghost', 'bot-0', 2)`:                           "t 2 blocked t",
		`reserve('ghost', 'bot-0', 2, 60)`:                     "t 2 blocked t",
	} {
		got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', r.allowed, r.granted, r.reason, round(r.retry_after_s), r.shadowed) FROM pglimit.`+call+` AS r`)
		if got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
	if got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', sum(denials), sum(blocked), sum(shadowed), sum(above_burst)) FROM pglimit_denial`); got != "9 9 2 0" {
		t.Errorf("%s denials were counted", got)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket`); n != 3 {
		t.Errorf("%d rows were written", n)
	}
	// A block denies the whole, and nothing is taken of the others; that of a shadow denies nothing.
	got := testworld.Value[string](t, pool, `SELECT concat_ws(' ', a.allowed, a.denied_by, a.retry_after_s, (SELECT string_agg(concat_ws(',', r.allowed, r.granted, r.reason), ' ') FROM unnest(a.requests) AS r))
		FROM pglimit.allow_all('{p,p,p,ghost}', '{bob,bot-vip,x,bot-0}') AS a`)
	if got != "f 3 0 t,0 f,0,blocked 0" {
		t.Errorf("allow_all: %s", got)
	}
	got = testworld.Value[string](t, pool, `SELECT concat_ws(' ', a.allowed, (SELECT string_agg(concat_ws(',', r.allowed, r.remaining, r.reason), ' ') FROM unnest(a.requests) AS r))
		FROM pglimit.allow_all('{p,ghost}', '{bob,bot-0}') AS a`)
	if got != "t t,4 t,0,blocked" {
		t.Errorf("allow_all: %s", got)
	}
}

// TestFunctionsReadPoliciesAtEachCall: an override ends by the database's clock, and a
// change applies to the next call, in the same transaction and statement too.
func TestFunctionsReadPoliciesAtEachCall(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour}
	testworld.StorePolicy(t, pool, p, false)
	allows := func(q testworld.Querier, key string) bool {
		t.Helper()
		r := must.OK((&testworld.Functions{Q: q, ByName: true}).Check(t.Context(), p, key, 2))(t)
		return r.Allowed
	}
	for until, want := range map[string]bool{
		"NULL": true, "clock_timestamp() + interval '1 hour'": true, "clock_timestamp() - interval '1 second'": false, "clock_timestamp()": false, "'infinity'": true,
	} {
		if _, err := pool.Exec(t.Context(), `INSERT INTO pglimit_override (policy, key, limit_units, until) VALUES ('p', 'k', 2, `+until+`)
			ON CONFLICT (policy, key, match) DO UPDATE SET until = EXCLUDED.until`); err != nil {
			if until == "'infinity'" {
				continue // the table may refuse it
			}
			t.Fatal(err)
		}
		if got := allows(pool, "k"); got != want {
			t.Errorf("until %s: allowed %v", until, got)
		}
	}
	if allows(pool, "K") || allows(pool, "other") {
		t.Error("the override of a key applies to another")
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(t.Context(), `UPDATE pglimit_policy SET limit_units = 2 WHERE name = 'p'`))(t)
	if !allows(tx, "other") || allows(pool, "other") {
		t.Error("a policy of this transaction does not apply in it, or in another")
	}
	must.Succeed(t, tx.Rollback(t.Context()))
	testworld.Exec(t, pool, `DO $$ BEGIN
			ASSERT NOT (pglimit.check('p', 'other', 2)).allowed;
			UPDATE pglimit_policy SET limit_units = 2 WHERE name = 'p';
			ASSERT (pglimit.check('p', 'other', 2)).allowed;
		END $$`)
	// Another algorithm is another count, but for the two names of one.
	testworld.Exec(t, pool, `SELECT pglimit.allow('p', 'counted', 2)`)
	testworld.Exec(t, pool, `UPDATE pglimit_policy SET algorithm = 'gcra' WHERE name = 'p'`)
	testworld.Exec(t, pool, `SELECT pglimit.allow('p', 'counted', 2)`)
	if got := testworld.Value[float64](t, pool, `SELECT round(level) FROM pglimit_token_bucket WHERE key = 'counted'`); got != 2 {
		t.Errorf("counted %v", got)
	}
	testworld.Exec(t, pool, `UPDATE pglimit_policy SET algorithm = 'fixed_window' WHERE name = 'p'`)
	testworld.Exec(t, pool, `SELECT pglimit.allow('p', 'counted', 2)`)
	if got := testworld.Value[float64](t, pool, `SELECT level FROM pglimit_fixed_window WHERE key = 'counted'`); got != 2 {
		t.Errorf("fixed_window counted %v", got)
	}
}
