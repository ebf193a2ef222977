package operations

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

func TestDoctorFuture(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	for i, large := range []bool{false, true} {
		for _, table := range testworld.LimitTables(t, pool) {
			testworld.InsertRows(t, pool, table, fmt.Sprint("p", i), 3, 0)
		}
		if large { // as if there were too many to read all
			testworld.Exec(t, pool, `UPDATE pg_class SET reltuples = 1e9 WHERE relname = 'pglimit_token_bucket'`)
		}
		expect(t, pool, "future", doctor.OK)
		testworld.Exec(t, pool, `UPDATE pglimit_token_bucket SET updated_at_us = 253402300799000000, expires_at_us = 253402300799000000 WHERE policy = $1 AND key = 'k2'`, fmt.Sprint("p", i))
		testworld.Exec(t, pool, `UPDATE pglimit_fixed_window SET updated_at_us = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 60000000 WHERE policy = $1 AND key <> 'k1'`, fmt.Sprint("p", i))
		c := expect(t, pool, "future", doctor.Fail, "3 keys", "public.pglimit_token_bucket: 1 key of policy p"+fmt.Sprint(i), "public.pglimit_fixed_window: 2 keys")
		if strings.Contains(c.Message, "sampled") != large {
			t.Errorf("%+v", c)
		}
		if strings.Contains(c.Message+c.Fix+strings.Join(c.Details, ""), "k2") {
			t.Errorf("a key is shown: %+v", c)
		}
		mend(t, pool, c.Fix)
		expect(t, pool, "future", doctor.OK)
	}
	if n := testworld.Value[int](t, pool, `SELECT (SELECT count(*) FROM pglimit_token_bucket) + (SELECT count(*) FROM pglimit_fixed_window)`); n != 12-2-4 {
		t.Errorf("%d rows are left", n)
	}
}

// TestDoctorJanitor: the checks read what waits for a sweep, and the last one.
func TestDoctorJanitor(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	expect(t, pool, "janitor", doctor.OK, "no sweep was ever completed; 0 due rows and 0 of 0 open reservations")
	testworld.InsertRows(t, pool, "pglimit_token_bucket", "p", 3, testworld.Value[int64](t, pool, `SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - 7200000000`))
	c := expect(t, pool, "janitor", doctor.Fail, "no sweep was ever completed; 3 due rows", "the oldest for 2h", "pglimit janitor")
	expectIn(t, find(t, pool, "janitor", doctor.Config{JanitorInterval: time.Hour}), doctor.Warn)
	mend(t, pool, c.Fix)
	expect(t, pool, "janitor", doctor.OK, "deleted 3 rows", "no janitor has the lease")
	testworld.Exec(t, pool, `UPDATE pglimit_sweep SET swept_at_us = swept_at_us - 600000000`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_lease (name, holder, expires_at_us) VALUES ('janitor', 'stuck', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 60000000)`)
	expect(t, pool, "janitor", doctor.Warn, "ended 10m", "janitor stuck has the lease", "read that process's log")
}

// TestDoctorKeys: the check names policies that have nearly as many keys as they may have.
func TestDoctorKeys(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	expect(t, pool, "keys", doctor.OK, "no policy with MaxKeys has had a key")
	l, p := testworld.NewLimiter(t, pool, nil), limiter.Policy{Name: "full", Algorithm: limiter.TokenBucket, Limit: 1, Period: time.Hour, MaxKeys: 10}
	for i := range 12 {
		testworld.Must(t)(l.Allow(t.Context(), p, fmt.Sprint(i)))
		if i == 7 {
			expect(t, pool, "keys", doctor.OK, "all of 1 policy with MaxKeys have room for new keys")
		}
	}
	if c := expect(t, pool, "keys", doctor.Warn); c.Fix != "" {
		t.Errorf("no row is due, and the fix is %s", c.Fix)
	}
	expect(t, pool, "keys", doctor.Warn, "policy full, token_bucket: 10 of 10 keys have a row: it is full", "pglimit policy set POLICY --max-keys N")
	testworld.Exec(t, pool, `UPDATE pglimit_token_bucket SET expires_at_us = 1, updated_at_us = 1; UPDATE pglimit_key_count SET taken_at_us = 1`)
	mend(t, pool, expect(t, pool, "keys", doctor.Warn).Fix)
	expect(t, pool, "keys", doctor.OK)
}

// TestDoctorChanges: a table that has lost its primary key, and a trigger that loses changes of
// policies, are named in the error and by the doctor.
func TestDoctorChanges(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	live, l := must.OK(policies.Open(t.Context(), pool, nil))(t), testworld.NewLimiter(t, pool, nil)
	t.Cleanup(func() { live.Close() })
	p, n := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Hour}, 0
	apply := func(e policies.Edit) error { n++; _, err := live.Apply(t.Context(), e); return err }
	set := func() error {
		p.Limit = float64(n + 2)
		return apply(policies.Edit{Set: []policies.Stored{{Policy: p}}})
	}
	block := func() error {
		return apply(policies.Edit{SetOverrides: []policies.Override{{Policy: "p", Key: fmt.Sprint(n), Blocked: true}}})
	}
	allow := func() error { _, err := l.Allow(t.Context(), p, "k"); return err }
	testworld.Exec(t, pool, `CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
	for _, c := range []struct {
		ill, mend, check, says string
		try                    func() error
	}{
		{`ALTER TABLE pglimit_token_bucket DROP CONSTRAINT pglimit_token_bucket_pkey`, "", "decision", "lost its primary key", allow},
		{`ALTER TABLE pglimit_policy DISABLE TRIGGER pglimit_policy_stamp`, "ALTER TABLE pglimit_policy ENABLE TRIGGER USER", "policies", "changes of pglimit_policy are lost", set},
		{`ALTER TABLE pglimit_override DISABLE TRIGGER pglimit_policy_stamp`, "ALTER TABLE pglimit_override ENABLE TRIGGER USER", "policies", "changes of pglimit_override are lost", block},
		{`CREATE TRIGGER a BEFORE INSERT OR UPDATE ON pglimit_policy FOR EACH ROW EXECUTE FUNCTION veto()`, "DROP TRIGGER a ON pglimit_policy", "policies", "changes of pglimit_policy are lost", set},
	} {
		must.Succeed(t, c.try())
		testworld.Exec(t, pool, c.ill)
		if err := c.try(); !errors.Is(err, limiter.ErrMisconfigured) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "pglimit doctor") {
			t.Errorf("%s: %v", c.ill, err)
		}
		mend(t, pool, cmp.Or(c.mend, expect(t, pool, c.check, doctor.Fail, "pglimit_").Fix))
		must.Succeed(t, c.try())
		expect(t, pool, c.check, doctor.OK)
	}
	must.Succeed(t, apply(policies.Edit{Set: []policies.Stored{{Policy: p}}})) // changes nothing
}

// TestDoctorPolicies: the doctor finds the stored policies and overrides that programs
// refuse, and shows no key and no note.
func TestDoctorPolicies(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	expect(t, pool, "policies", doctor.OK, "0 policies and 0 overrides")
	testworld.Exec(t, pool, `INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone) VALUES ('good', 'fixed_window', 5, 'day', 'Europe/Vienna'), ('bad', 'fixed_window', 5, 'day', 'Mars/Olympus')`)
	expect(t, pool, "policies", doctor.Fail, "1 of 2 stored policies", "policy bad: ", "Mars/Olympus", "public.pglimit_policy")
	testworld.Exec(t, pool, `DELETE FROM pglimit_policy WHERE name = 'bad'`)
	expect(t, pool, "policies", doctor.OK, "1 policy")
	// A restored dump may lack the constraints.
	testworld.Exec(t, pool, `DO $$ DECLARE c record; BEGIN FOR c IN SELECT conname, conrelid::regclass AS t FROM pg_constraint WHERE conrelid IN ('pglimit_policy'::regclass, 'pglimit_override'::regclass) AND contype = 'c' LOOP EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.t, c.conname); END LOOP; END $$`)
	for _, bad := range []struct{ table, change, says string }{
		{"pglimit_policy", `(name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 'NaN', 60)`, "policy p: "},
		{"pglimit_policy", `(name, algorithm, limit_units, period_s) VALUES ('p', 'x', 5, 60)`, "policy p: "},
		{"pglimit_policy", `(name, algorithm, limit_units, period_s) VALUES ('P', 'gcra', 5, 60)`, "policy P: "},
		{"pglimit_policy", `(name, algorithm, limit_units, period_s, max_ttl_s) VALUES ('p', 'gcra', 5, 60, 0.5)`, "policy p: "},
		{"pglimit_policy", `(name, algorithm, limit_units, period_s, note) VALUES ('p', 'gcra', 5, 60, repeat('n', 1001))`, "policy p: "},
		{"pglimit_override", `(policy, key, limit_units) VALUES ('p', 'secret', 'NaN')`, "an override of policy p: "},
		{"pglimit_override", `(policy, key) VALUES ('p', 'secret')`, "an override of policy p: "},
		{"pglimit_override", `(policy, key, limit_units, until) VALUES ('p', 'secret', 1, '1969-01-01')`, "an override of policy p: "},
		{"pglimit_override", `(policy, key, limit_units, note) VALUES ('p', 'k', 1, repeat('secret', 200))`, "an override of policy p: "},
		{"pglimit_override", `(policy, key, limit_units) VALUES ('p', repeat('secret', 200), 1)`, "an override of policy p: "},
		{"pglimit_override", `(policy, key, unlimited, until) VALUES ('p', 'secret', true, 'infinity')`, "missing or changed"}, // programs cannot read it, because there is no constraint
	} {
		testworld.Exec(t, pool, `INSERT INTO `+bad.table+` `+bad.change)
		if c := expect(t, pool, "policies", doctor.Fail, bad.says); strings.Contains(fmt.Sprint(c), "secret") {
			t.Errorf("%s: it shows a key or a note: %+v", bad.change, c)
		}
		testworld.Exec(t, pool, `DELETE FROM `+bad.table+` WHERE `+map[string]string{"pglimit_policy": "name <> 'good'", "pglimit_override": "true"}[bad.table])
		expect(t, pool, "policies", doctor.OK)
	}
}
