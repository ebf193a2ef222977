package roles

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// attacks are what an asker must not do. Each is a statement that works: an operator runs
// them all.
func attacks() map[string]string {
	all := map[string]string{
		"see policies":                              `SELECT * FROM limits.pglimit_policy`,
		"make a policy":                             `INSERT INTO limits.pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('mine', 'gcra', 9e15, 1)`,
		"raise a policy":                            `UPDATE limits.pglimit_policy SET limit_units = 1e15`,
		"open a policy to askers":                   `UPDATE limits.pglimit_policy SET askers = true`,
		"make a policy a shadow":                    `UPDATE limits.pglimit_policy SET shadow = true`,
		"drop policies":                             `DELETE FROM limits.pglimit_policy`,
		"see overrides":                             `SELECT * FROM limits.pglimit_override`,
		"make a key unlimited":                      `INSERT INTO limits.pglimit_override (policy, key, unlimited) VALUES ('gcra', 'mine', true)`,
		"keep an override":                          `UPDATE limits.pglimit_override SET until = 'infinity'`,
		"drop overrides":                            `DELETE FROM limits.pglimit_override`,
		"read the history of policies":              `SELECT * FROM limits.pglimit_policy_history`,
		"forget the history of policies":            `DELETE FROM limits.pglimit_policy_history`,
		"see programs":                              `SELECT * FROM limits.pglimit_program`,
		"drop programs":                             `DELETE FROM limits.pglimit_program`,
		"raise the version of policies":             `UPDATE limits.pglimit_policy_version SET version = version + 1`,
		"read denials":                              `SELECT * FROM limits.pglimit_denial`,
		"request by the normal name":                `SELECT pglimit.allow('gcra', 'victim', 1)`,
		"request at another time":                   `SELECT pglimit.allow('gcra', 'victim', 1, now => '9999-12-31')`,
		"request for others by name":                `SELECT pglimit.allow('operators', 'victim')`,
		"read a policy":                             `SELECT pglimit._policy_of('gcra', 'k')`,
		"read reservations":                         `SELECT * FROM limits.pglimit_reservation`,
		"settle all reservations":                   `UPDATE limits.pglimit_reservation SET state = 'cancelled'`,
		"forget reservations":                       `DELETE FROM limits.pglimit_reservation`,
		"hold the janitor's lease":                  `INSERT INTO limits.pglimit_lease (name, holder, expires_at_us) VALUES ('janitor', 'x', 9223372036854775807)`,
		"take the janitor's lease":                  `DELETE FROM limits.pglimit_lease`,
		"read who holds the lease":                  `SELECT * FROM limits.pglimit_lease`,
		"read the record of migrations":             `SELECT * FROM limits.pglimit_goose_db_version`,
		"settle with the normal function":           `SELECT pglimit.settle(r.reservation, 1) FROM pglimit.reserve_with('gcra', 'gcra', 'r', 1, 10, 60, ttl_s => 60) AS r`,
		"cancel with the normal function":           `SELECT pglimit.cancel(r.reservation) FROM pglimit.reserve_with('gcra', 'gcra', 'r', 1, 10, 60, ttl_s => 60) AS r`,
		"guess without a limit by another's policy": `SELECT pglimit.attempt_with('login', 'victim', 1, 60, block_for_s => 1)`,
		"make a victim wait":                        `SELECT pglimit.failed(a.ticket) FROM pglimit.attempt_with('login', 'victim', 1, 60, block_for_s => 3155760000, block_max_s => 3155760000) AS a`,
		"end a victim's wait":                       `SELECT pglimit.succeeded(a.ticket) FROM pglimit.attempt_with('login', 'victim', 9e15, 60, 100, block_for_s => 1) AS a`,
		"take a slot":                               `SELECT pglimit.acquire_with('login', 'victim', limit_units => 1, period_s => 60)`,
		"read slots":                                `SELECT * FROM limits.pglimit_slot`,
		"read balances":                             `SELECT * FROM limits.pglimit_balance`,
		"fill a balance":                            `UPDATE limits.pglimit_balance SET units = 9e15`,
		"read attempts":                             `SELECT * FROM limits.pglimit_attempt`,
		"forget attempts":                           `DELETE FROM limits.pglimit_attempt`,
		"report all attempts":                       `UPDATE limits.pglimit_attempt SET tickets = '{}'`,
		"choose the clock of a settlement":          `SELECT pglimit.settle(r.reservation, 1, clock_timestamp() + interval '1 hour') FROM pglimit.reserve_with('gcra', 'gcra', 'r', 1, 10, 60, ttl_s => 60) AS r`,
	}
	for _, a := range algorithms {
		for what, sql := range map[string]string{
			"read the keys":              `SELECT * FROM limits.pglimit_%s`,
			"read the view":              `SELECT * FROM limits.pglimit_%s_now`,
			"update the level":           `UPDATE limits.pglimit_%s SET updated_at_us = 0`,
			"freeze in the year 9999":    `UPDATE limits.pglimit_%s SET updated_at_us = 253402300799000000`,
			"delete":                     `DELETE FROM limits.pglimit_%s`,
			"lock":                       `LOCK TABLE limits.pglimit_%s IN ROW EXCLUSIVE MODE`,
			"take":                       `SELECT pglimit.%s('x', 'k', 1, 10, 60)`,
			"take with a clock":          `SELECT pglimit.%s('x', 'k', 1, 10, 60, now => '9999-12-31')`,
			"empty with a fast rate":     `SELECT pglimit.%[1]s('%[1]s', 'victim', 1, 9e15, 0.000001)`,
			"fill with a large burst":    `SELECT pglimit.%[1]s('%[1]s', 'victim', 9e15, 9e15, 3155760000)`,
			"block for a hundred years":  `SELECT pglimit.block_with('%[1]s', '%[1]s', 'victim', 3155760000)`,
			"block by a denial":          `SELECT pglimit.%[1]s('%[1]s', 'victim', 2, 1, 60, block_for_s => 3155760000)`,
			"unblock":                    `SELECT pglimit.unblock_with('%[1]s', '%[1]s', 'victim')`,
			"reset":                      `SELECT pglimit.reset_with('%[1]s', '%[1]s', 'victim')`,
			"check with the normal one":  `SELECT pglimit.check_with('%[1]s', '%[1]s', 'victim', 0, 10, 60)`,
			"charge with the normal one": `SELECT pglimit.charge_with('%[1]s', '%[1]s', 'victim', 1, 10, 60)`,
			"unblock by name":            `SELECT pglimit.unblock('%[1]s', 'victim')`,
			"reset by name":              `SELECT pglimit.reset('%[1]s', 'victim')`,
			"block by name":              `SELECT pglimit.block('%[1]s', 'victim', 3155760000)`,
		} {
			sql = strings.ReplaceAll(sql, "pglimit_%s", testworld.TableOf(a))
			if strings.Contains(sql, "%[1]s") {
				sql = fmt.Sprintf(sql, a)
			} else {
				sql = strings.ReplaceAll(sql, "%s", a)
			}
			all[what+" of "+a] = sql
		}
		if a != "leaky_bucket_queue" {
			all["refund of "+a] = fmt.Sprintf(`SELECT pglimit.refund_with('%[1]s', '%[1]s', 'victim', 5, 10, 60)`, a)
			all["refund by name of "+a] = fmt.Sprintf(`SELECT pglimit.refund('%[1]s', 'victim', 5)`, a)
		}
	}
	return all
}

// migrating is what neither may do.
var migrating = []string{
	`DROP TABLE limits.pglimit_token_bucket`, `TRUNCATE limits.pglimit_token_bucket`, `ALTER TABLE limits.pglimit_token_bucket ADD COLUMN x int`,
	`CREATE TABLE limits.mine ()`, `CREATE TABLE pglimit_ask.mine ()`, `CREATE FUNCTION pglimit_ask.allow(int) RETURNS int LANGUAGE sql AS 'SELECT 1'`,
	`CREATE TRIGGER mine BEFORE UPDATE ON limits.pglimit_token_bucket EXECUTE FUNCTION suppress_redundant_updates_trigger()`,
	`DROP FUNCTION pglimit_ask.cancel(text)`, `ALTER FUNCTION pglimit_ask.cancel(text) SECURITY INVOKER`, `ALTER FUNCTION pglimit_ask.cancel(text) RESET search_path`,
	`DROP SCHEMA pglimit_ask CASCADE`, `TRUNCATE limits.pglimit_policy`, `TRUNCATE limits.pglimit_override`,
}

// TestGrantsRefuseAnAsker: every attack fails with insufficient_privilege for an asker,
// and works for an operator.
func TestGrantsRefuseAnAsker(t *testing.T) {
	t.Parallel()
	s := granted(t)
	all := attacks()
	for what, sql := range all {
		if code, err := try(t, s.operator, sql); code != "" {
			t.Errorf("an operator cannot %s: %v", what, err)
		}
		if code, err := try(t, s.asker, sql); code != "42501" {
			t.Errorf("an asker may %s: %q, %v", what, code, err)
		}
	}
	for _, sql := range migrating {
		wants(t, s.asker, "42501", sql)
		wants(t, s.operator, "42501", sql)
	}
	// The functions within pglimit_ask are not for askers.
	wants(t, s.asker, "42501", `SELECT pglimit_ask._find('gcra', 'k')`)
	wants(t, s.asker, "42501", `SELECT pglimit_ask._declared(NULL, 'token_bucket:0123456789abcdef:p:aw', 0)`)
	if len(all) < 150 {
		t.Errorf("only %d attacks", len(all))
	}
}

// TestGrantsLetAnAskerAsk calls every verb under every algorithm, and compares with what an
// operator's calls with the same numbers return.
func TestGrantsLetAnAskerAsk(t *testing.T) {
	t.Parallel()
	s := granted(t)
	answer := func(pool *pgxpool.Pool, sql string) (text string) {
		t.Helper()
		return testworld.Value[string](t, pool, `SELECT format('%s %s %s %s', a.allowed, round(a.granted), round(a.remaining), a.reason) FROM `+sql+` AS a`)
	}
	for _, a := range algorithms {
		for _, c := range [][2]string{
			{`pglimit_ask.allow('%[1]s', '%[2]s')`, `pglimit.%[1]s('%[1]s', '%[2]s', 1, 10, 3600)`},
			{`pglimit_ask.allow('%[1]s', '%[2]s', 4)`, `pglimit.%[1]s('%[1]s', '%[2]s', 4, 10, 3600)`},
			{`pglimit_ask.check('%[1]s', '%[2]s', 0)`, `pglimit.check_with('%[1]s', '%[1]s', '%[2]s', 0, 10, 3600)`},
			{`pglimit_ask.charge('%[1]s', '%[2]s', 2)`, `pglimit.charge_with('%[1]s', '%[1]s', '%[2]s', 2, 10, 3600)`},
			{`pglimit_ask.allow_up_to('%[1]s', '%[2]s', 9)`, `pglimit.allow_up_to_with('%[1]s', '%[1]s', '%[2]s', 9, 10, 3600)`},
			{`pglimit_ask.allow('%[1]s', '%[2]s', 5)`, `pglimit.%[1]s('%[1]s', '%[2]s', 5, 10, 3600)`},
			{`pglimit_ask.allow('%[1]s', '%[2]s', 11)`, `pglimit.%[1]s('%[1]s', '%[2]s', 11, 10, 3600)`},
			{`pglimit_ask.check('%[1]s', '%[2]s')`, `pglimit.check_with('%[1]s', '%[1]s', '%[2]s', 1, 10, 3600)`},
			{`pglimit_ask.charge('%[1]s', '%[2]s', 99)`, `pglimit.charge_with('%[1]s', '%[1]s', '%[2]s', 99, 10, 3600)`},
		} {
			got, want := answer(s.asker, fmt.Sprintf(c[0], a, "asker")), answer(s.operator, fmt.Sprintf(c[1], a, "operator"))
			if got != want {
				t.Errorf("%s: %s, want %s", fmt.Sprintf(c[0], a, "asker"), got, want)
			}
		}
		if a == "leaky_bucket_queue" {
			wants(t, s.asker, "0A000", `SELECT pglimit_ask.reserve($1, 'r', 4, 60)`, a)
			continue
		}
		reserve := func() string {
			return testworld.Value[string](t, s.asker, `SELECT reservation FROM pglimit_ask.reserve($1, 'r', 4, 60)`, a)
		}
		left := func(want float64) {
			t.Helper()
			if got := testworld.Value[float64](t, s.asker, `SELECT round(remaining) FROM pglimit_ask.check($1, 'r', 0)`, a); got != want {
				t.Errorf("%s: %v remaining, want %v", a, got, want)
			}
		}
		id := reserve()
		left(6)
		wants(t, s.asker, "22023", `SELECT pglimit_ask.settle($1, 4.5)`, id)
		testworld.Exec(t, s.asker, `SELECT pglimit_ask.settle($1, 3)`, id)
		testworld.Exec(t, s.asker, `SELECT pglimit_ask.settle($1, 3)`, id) // a replay
		left(7)
		testworld.Exec(t, s.asker, `SELECT pglimit_ask.cancel($1)`, reserve())
		left(7)
	}
}

// TestGrantsBoundAnAsker: what an asker may call cannot be used for what it may not.
func TestGrantsBoundAnAsker(t *testing.T) {
	t.Parallel()
	s := granted(t)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, max_ttl_s, askers) VALUES ('short', 'gcra', 10, 3600, 60, true)`)
	ask := s.asker
	wants(t, ask, "42501", `SELECT pglimit_ask.allow('operators', 'k')`) // there is one, without askers
	wants(t, ask, "42501", `SELECT pglimit_ask.reserve('operators', 'k', 1, 60)`)
	wants(t, ask, "42501", `SELECT pglimit_ask.reserve_up_to('operators', 'k', 1, 60)`)
	wants(t, ask, "42883", `SELECT pglimit_ask.reserve_up_to('gcra', 'k', 1, 60, estimate => true)`) // it could teach others to reserve too little
	wants(t, ask, "42501", `SELECT pglimit_ask.allow('undeclared', 'k')`)
	wants(t, ask, "42501", `SELECT pglimit_ask.check(NULL, 'k')`)
	wants(t, ask, "42883", `SELECT pglimit_ask.allow('gcra', 'k', 1, now => '9999-12-31')`) // there is no such parameter
	wants(t, ask, "42883", `SELECT pglimit_ask.allow('gcra', 'k', 1, limit_units => 1e15)`)
	wants(t, ask, "42883", `SELECT pglimit_ask.refund('gcra', 'k', 1)`)
	wants(t, ask, "42883", `SELECT pglimit_ask.grant('gcra', 'k', 1)`)
	wants(t, ask, "42501", `SELECT pglimit.grant('gcra', 'k', 1)`)
	wants(t, ask, "22023", `SELECT pglimit_ask.allow('gcra', 'k', -5)`)
	wants(t, ask, "22023", `SELECT pglimit_ask.charge('gcra', 'k', 'NaN')`)
	wants(t, ask, "22023", `SELECT pglimit_ask.allow('gcra', '')`)
	wants(t, ask, "22023", `SELECT pglimit_ask.reserve('short', 'k', 1, 61)`)
	wants(t, ask, "22023", `SELECT pglimit_ask.reserve('short', 'k', 1, 'NaN')`)
	wants(t, ask, "22023", `SELECT pglimit_ask.reserve('short', 'k')`)
	wants(t, ask, "P0002", `SELECT pglimit_ask.cancel('token_bucket:0123456789abcdef0123456789abcdef:token_bucket:aw')`)

	// Reservations under policies of others, even with a known ID.
	other := testworld.Value[string](t, s.operator, `SELECT reservation FROM pglimit.reserve_with('gcra', 'other', 'k', 1, 10, 60, ttl_s => 60)`)
	wants(t, ask, "42501", `SELECT pglimit_ask.settle($1, 0)`, other)
	wants(t, ask, "42501", `SELECT pglimit_ask.cancel($1)`, other)
	other = testworld.Value[string](t, s.operator, `SELECT reservation FROM pglimit.reserve('operators', 'k', 1, 60)`)
	wants(t, ask, "42501", `SELECT pglimit_ask.settle($1, 0)`, other)
	wants(t, ask, "42501", `SELECT pglimit_ask.cancel($1)`, other)

	// Not more than 1,000 open reservations of a key by one asker, of which none can be given back.
	id := testworld.Value[string](t, ask, `SELECT reservation FROM pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)
	testworld.Exec(t, s.owner, `INSERT INTO pglimit_reservation SELECT (jsonb_populate_record(h, jsonb_build_object('id', left(h.id, 8) || lpad(i::text, 20, '0')))).*
		FROM pglimit_reservation AS h, generate_series(1, 999) AS i WHERE h.key = 'many'`)
	wants(t, ask, "54000", `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)
	wants(t, ask, "", `SELECT pglimit_ask.reserve('gcra', 'few', 0.001, 60)`)
	another := testworld.RuntimeRole(t, s.superURL)
	testworld.Exec(t, s.super, fmt.Sprintf(`GRANT %s TO %s`, testworld.RoleOf(t, s.askerURL), testworld.RoleOf(t, another)))
	wants(t, testworld.Connect(t, another), "", `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)
	wants(t, s.operator, "", `SELECT pglimit.reserve('gcra', 'many', 0.001, 60)`)
	testworld.Exec(t, ask, `SELECT pglimit_ask.cancel($1)`, id)
	wants(t, ask, "", `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60); SELECT pglimit_ask.allow('gcra', 'many')`)
	wants(t, ask, "54000", `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60); SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)
	testworld.Exec(t, ask, `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)
	testworld.Exec(t, s.owner, `UPDATE pglimit_reservation SET expires_at_us = 0 WHERE substr(id, 9) < lpad('1', 20, '0') || 'x'`)
	wants(t, ask, "", `SELECT pglimit_ask.reserve('gcra', 'many', 0.001, 60)`)

	// No sequence of calls brings a key above its burst: not by reservations that expire
	// and are settled late, and not by charges.
	for _, a := range algorithms {
		if a != "leaky_bucket_queue" {
			ids := []string{}
			for range 3 {
				id := testworld.Value[string](t, ask, `SELECT reservation FROM pglimit_ask.reserve($1, 'full', 10, 60)`, a)
				ids = append(ids, id)
				testworld.Exec(t, s.owner, `UPDATE pglimit_reservation SET expires_at_us = 0 WHERE id = $1`, testworld.StoredID(id))
			}
			testworld.Exec(t, ask, `SELECT pglimit_ask.allow($1, 'full', 10)`, a)
			for _, id := range ids {
				wants(t, ask, "55000", `SELECT pglimit_ask.settle($1, 10)`, id)
			}
		}
		testworld.Exec(t, ask, `SELECT pglimit_ask.charge($1, 'full', 9e15)`, a)
		if level := testworld.Value[float64](t, ask, `SELECT level FROM pglimit_ask.check($1, 'full', 0)`, a); level > 10.001 {
			t.Errorf("%s: level %v", a, level)
		}
	}
}

// TestGrantsOverridesOfAskers: overrides and shadows that an operator wrote apply to
// askers, who have no function to change them.
func TestGrantsOverridesOfAskers(t *testing.T) {
	t.Parallel()
	s := granted(t)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_override (policy, key, limit_units, until) VALUES ('gcra', 'more', 20, NULL), ('gcra', 'was more', 20, clock_timestamp())`)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('gcra', 'free', true)`)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_override (policy, key, shadow) VALUES ('gcra', 'shadow', true)`)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_override (policy, key, match, unlimited, blocked) VALUES ('gcra', 'vip-', 'prefix', true, false), ('gcra', 'vip-*x', 'pattern', false, true), ('gcra', 'bot-', 'prefix', false, true)`)
	// A policy without askers stays closed, whatever a key's override has.
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_override (policy, key, unlimited) VALUES ('operators', 'free', true)`)
	for _, c := range []struct {
		call string
		want string // allowed, granted, shadowed, reason
	}{
		{`allow('gcra', 'more', 15)`, "t 15 f"},
		{`allow('gcra', 'was more', 15)`, "f 0 f limit"},
		{`allow('gcra', 'free', 1e9)`, "t 1000000000 f"},
		{`allow_up_to('gcra', 'shadow', 15)`, "t 15 t"},
		{`allow('gcra', 'shadow', 15)`, "t 15 t limit"},
		{`check('gcra', 'shadow', 15)`, "t 15 t limit"},
		{`charge('gcra', 'shadow', 15)`, "t 0 f"},
		{`reserve('gcra', 'shadow', 1, 60)`, "t 1 t limit"},
		{`reserve('gcra', 'free', 99, 60)`, "t 99 f"},
		{`allow('gcra', 'vip-1x', 99)`, "t 99 f"},
		{`allow('gcra', 'bot-1')`, "f 0 f blocked"},
		{`reserve('gcra', 'bot-1', 1, 60)`, "f 0 f blocked"},
		{`charge('gcra', 'bot-1', 2)`, "t 2 f"},
	} {
		got := testworld.Value[string](t, s.asker, `SELECT concat_ws(' ', a.allowed, round(a.granted), a.shadowed, a.reason) FROM pglimit_ask.`+c.call+` AS a`)
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.call, got, c.want)
		}
	}
	wants(t, s.asker, "42501", `SELECT pglimit_ask.allow('operators', 'free')`)
	id := testworld.Value[string](t, s.asker, `SELECT reservation FROM pglimit_ask.reserve('gcra', 'free', 99, 60)`)
	testworld.Exec(t, s.asker, `SELECT pglimit_ask.settle($1, 100)`, id)
	testworld.Exec(t, s.asker, `SELECT pglimit_ask.cancel($1)`, id)
	if n := testworld.Value[int](t, s.owner, `SELECT (SELECT count(*) FROM pglimit_reservation) + (SELECT count(*) FROM pglimit_token_bucket WHERE key = 'free')`); n != 0 {
		t.Errorf("%d rows were written for what is not counted", n)
	}
	// A calendar's windows are for askers too.
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone, askers) VALUES ('month', 'fixed_window', 10, 'month', 'Europe/Vienna', true)`)
	testworld.Exec(t, s.asker, `SELECT pglimit_ask.allow('month', 'k', 4)`)
	ends := testworld.Value[time.Time](t, s.owner, `SELECT to_timestamp(ends_at_us / 1000000) AT TIME ZONE 'Europe/Vienna' FROM pglimit_fixed_window WHERE policy = 'month'`)
	if ends.Day() != 1 || ends.Hour() != 0 || ends.Minute() != 0 {
		t.Errorf("the month ends at %v in Vienna", ends)
	}
}

// TestGrantsOldSnapshot: in a transaction whose snapshot is older than a change of a policy
// or an override, no call goes by what was before. A change waits for no transaction that
// has called a function, and keeps none waiting.
func TestGrantsOldSnapshot(t *testing.T) {
	t.Parallel()
	s := granted(t)
	testworld.Exec(t, s.operator, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, askers) VALUES ('p', 'gcra', 100, 3600, true)`)
	id := testworld.Value[string](t, s.asker, `SELECT reservation FROM pglimit_ask.reserve('p', 'k', 1, 60)`)
	begin := func(pool *pgxpool.Pool, level pgx.TxIsoLevel, first string) pgx.Tx {
		t.Helper()
		tx := testworld.Begin(t, pool, pgx.TxOptions{IsoLevel: level})
		must.OK(tx.Exec(t.Context(), `SET LOCAL lock_timeout = '10s'; `+first))(t)
		return tx
	}
	calls := []string{
		`SELECT pglimit_ask.allow('p', 'k', 90)`, `SELECT pglimit_ask.reserve('p', 'k', 90, 60)`,
		`SELECT pglimit_ask.settle('` + id + `', 0)`, `SELECT pglimit.allow('p', 'k', 90)`,
	}
	for i, change := range []string{
		`UPDATE pglimit_policy SET limit_units = 1 WHERE name = 'p'`,
		`INSERT INTO pglimit_override (policy, key, limit_units) VALUES ('p', 'k', 1)`,
		`DELETE FROM pglimit_override`,
		`UPDATE pglimit_policy SET askers = false WHERE name = 'p'`,
		`DELETE FROM pglimit_policy WHERE name = 'p'`,
	} {
		level := []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable}[i%2]
		var old []pgx.Tx
		for _, call := range calls {
			pool := s.asker
			if strings.Contains(call, "pglimit.") {
				pool = s.operator
			}
			old = append(old, begin(pool, level, `SELECT 1`))
		}
		before := begin(s.operator, level, `SELECT pglimit.check('gcra', 'k')`)
		changing := begin(s.owner, pgx.ReadCommitted, change)
		meanwhile := begin(s.operator, level, `SELECT pglimit.check('gcra', 'k')`)
		must.Succeed(t, changing.Commit(t.Context()))
		for i, call := range calls {
			_, err := old[i].Exec(t.Context(), call)
			var answer *pgconn.PgError
			if !errors.As(err, &answer) || answer.Code != "40001" {
				t.Errorf("%s, then %s: %v", change, call, err)
			}
			_ = old[i].Rollback(t.Context())
		}
		_, _ = before.Rollback(t.Context()), meanwhile.Rollback(t.Context())
	}
}
