package policies

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestInvalidRows: what was written by hand and is not valid keeps the last known policy or
// override, or is left out, and is logged once.
func TestInvalidRows(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	logger, logs := newLog()
	p := open(t, pool, policies.Config{Logger: logger, PollEvery: time.Hour})
	day := limiter.Policy{Name: "day", Algorithm: limiter.FixedWindow, Limit: 5, Calendar: limiter.Day}
	version := apply(t, p.Policies, policies.Edit{Set: []policies.Stored{{Policy: login}, {Policy: day}}})
	do := func(sql string) {
		t.Helper()
		testworld.Exec(t, pool, sql)
		version++
		p.await(t, version)
	}
	expectLog(t, logs)
	do(`UPDATE pglimit_policy SET time_zone = 'Mars/Base' WHERE name = 'day'`)
	expectLog(t, logs, "level=ERROR", "policy=day", "TimeZone", "Mars/Base")
	do(`UPDATE pglimit_policy SET limit_units = 6 WHERE name = 'login'`)
	expectLog(t, logs) // again
	if got, err := p.Get("day"); err != nil || got != day || len(p.List()) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	do(`INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, time_zone) VALUES ('new', 'fixed_window', 1, 'day', 'Mars/Base')`)
	expectLog(t, logs, "policy=new", "Mars/Base")
	if got, err := p.Get("new"); err == nil {
		t.Errorf("%+v", got)
	}
	// A burst that the policy has no use for takes nothing from the rest, as in SQL.
	do(`INSERT INTO pglimit_override (policy, key, limit_units, burst) VALUES ('day', 'k', 9, 8)`)
	expectLog(t, logs)
	if got, _, err := p.For("day", "k"); err != nil || got.Limit != 9 || got.Burst != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	// Nor does an anchor of a policy without a calendar.
	do(`INSERT INTO pglimit_override (policy, key, anchor) VALUES ('login', 'anchored', '2024-01-31'), ('day', 'anchored', '2024-01-31T09:30')`)
	expectLog(t, logs)
	for name, want := range map[string]string{"login": "", "day": "2024-01-31T09:30"} {
		if got, _, err := p.For(name, "anchored"); err != nil || got.Anchor != want || got.Limit < 5 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	do(`DELETE FROM pglimit_override WHERE key = 'anchored'`)
	do(`UPDATE pglimit_policy SET time_zone = 'Europe/Vienna' WHERE name = 'day'`)
	expectLog(t, logs)
	if got, err := p.Get("day"); err != nil || got.TimeZone != "Europe/Vienna" {
		t.Errorf("%+v, %v", got, err)
	}
	// Constraints refuse the rest, unless someone drops them.
	testworld.Exec(t, pool, `ALTER TABLE pglimit_policy DROP CONSTRAINT "limit_units must be from 1e-9 to 2^53", DROP CONSTRAINT "max_ttl_s must be from 1 to 3155760000",
		DROP CONSTRAINT "durability must be durable or relaxed"`)
	do(`UPDATE pglimit_policy SET limit_units = 'NaN' WHERE name = 'login'`)
	expectLog(t, logs, "Limit NaN")
	do(`UPDATE pglimit_policy SET limit_units = 6, max_ttl_s = '-Infinity' WHERE name = 'login'`)
	expectLog(t, logs, "MaxTTL")
	do(`UPDATE pglimit_policy SET durability = 'maybe' WHERE name = 'login'`)
	expectLog(t, logs, "Durability", "maybe")
	if got, err := p.Get("login"); err != nil || got.Limit != 6 || got.Durability != limiter.Durable {
		t.Errorf("%+v, %v", got, err)
	}
	testworld.Exec(t, pool, `ALTER TABLE pglimit_override DROP CONSTRAINT "limit_units must be from 1e-9 to 2^53"`)
	do(`UPDATE pglimit_override SET limit_units = 'NaN'`)
	expectLog(t, logs, "policy=day", "key=k", "Limit NaN")
	if got, _, err := p.For("day", "k"); err != nil || got.Limit != 9 {
		t.Errorf("%+v, %v", got, err)
	}
	do(`DELETE FROM pglimit_policy WHERE name = 'login'`)
	if got, err := p.Get("login"); err == nil {
		t.Errorf("a deleted policy stays: %+v", got)
	}
}

// TestOverridesInTheDatabase: a limiter, its transactions and other limiters agree about
// overrides, with a KeySecret too.
func TestOverridesInTheDatabase(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string][]byte{"plain": nil, "secret": []byte("a secret of more than 16 bytes")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			pool := testworld.NewPool(t)
			p := open(t, pool, policies.Config{KeySecret: secret})
			apply(t, p.Policies, policies.Edit{SetOverrides: []policies.Override{
				{Policy: "login", Key: "free", Unlimited: true}, {Policy: "login", Key: "vip", Limit: new(50.0), Burst: new(20.0)},
				{Policy: "login", Key: "ended", Unlimited: true, Until: time.Now().Add(-time.Hour)},
			}})
			if stored := overrides(t, p.Policies, "")[0].Key; (stored == "free") != (secret == nil) {
				t.Errorf("stored is %q", stored)
			}
			if n := p.OverrideCount("login"); n != 2 {
				t.Errorf("%d overrides", n)
			}
			l := testworld.NewLimiter(t, pool, &limiter.Config{Policies: p.Policies, KeySecret: secret})
			for _, c := range []struct {
				key    string
				n      float64
				limit  float64
				source limiter.Source
			}{{"free", 1000, 5, limiter.SourceOverride}, {"vip", 20, 50, limiter.SourceDatabase}, {"other", 10, 5, limiter.SourceDatabase}, {"ended", 10, 5, limiter.SourceDatabase}} {
				r, err := l.AllowN(ctx, login, c.key, c.n)
				if err != nil || !r.Allowed || r.Limit != c.limit || r.Source != c.source {
					t.Errorf("%s: %+v, %v", c.key, r, err)
				}
				if r, err = l.AllowN(ctx, login, c.key, c.n); err != nil || r.Allowed != (c.key == "free") {
					t.Errorf("%s again: %+v, %v", c.key, r, err)
				}
			}
			// A remembered denial does not outlive a new override.
			must.OK(p.Apply(ctx, policies.Edit{SetOverrides: []policies.Override{{Policy: "login", Key: "vip", Limit: new(50.0), Burst: new(40.0)}}}))(t)
			if r, err := l.AllowN(ctx, login, "vip", 15); err != nil || !r.Allowed {
				t.Errorf("with more burst: %+v, %v", r, err)
			}
			tx := testworld.Begin(t, pool, pgx.TxOptions{})
			all, err := l.InTx(tx).AllowAll(ctx, login.Request("free", 100), login.Request("vip", 1), login.Request("other", 1))
			if err != nil || all.Allowed || all.DeniedBy != 2 || all.PerRequest[0].Source != limiter.SourceOverride || all.PerRequest[1].Burst != 40 {
				t.Errorf("%+v, %v", all, err)
			}
			r, err := l.InTx(tx).Reserve(ctx, login.Request("free", 100), time.Minute)
			if err != nil || !r.Result.Allowed {
				t.Fatalf("%+v, %v", r, err)
			}
			testworld.Commit(t, tx)
			if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_reservation`); n != 0 {
				t.Errorf("%d reservations", n)
			}
			if s, err := l.Settle(ctx, r.ID, 70); err != nil || s.Granted != 0 || s.Source != limiter.SourceSkipped {
				t.Errorf("%+v, %v", s, err)
			}
			if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_token_bucket WHERE level > 0`); n != 3 {
				t.Errorf("%d keys have counted", n)
			}
		})
	}
}

// TestOverridesOfAnotherSecret: overrides whose keys cannot match are refused.
func TestOverridesOfAnotherSecret(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	live := must.OK(policies.Open(t.Context(), pool, &policies.Config{DisableListen: true}))(t)
	defer live.Close()
	if _, err := limiter.New(pool, &limiter.Config{Policies: live, KeySecret: []byte("a secret of more than 16 bytes")}); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if _, err := limiter.New(pool, &limiter.Config{Policies: live}); err != nil {
		t.Error(err)
	}
}

// TestChangesOfTheLastDigit: a change that the session does not show is one.
func TestChangesOfTheLastDigit(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	short := testworld.Connect(t, pool.Config().ConnString(), testworld.Setting("extra_float_digits", "0"))
	testworld.Exec(t, short, `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s) VALUES ('p', 'gcra', 9007199254740992, 1)`)
	testworld.Exec(t, short, `UPDATE pglimit_policy SET limit_units = 9007199254740991`)
	if got := testworld.Value[float64](t, pool, `SELECT limit_units FROM pglimit_policy`); got != 9007199254740991 {
		t.Errorf("limit_units is %v", got)
	}
}
