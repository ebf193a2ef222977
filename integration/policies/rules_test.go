package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestRulesFollow: a rule that one process sets holds in another, for keys that neither has
// seen, until it is deleted. The history has both changes. KeySecret hashes no rule.
func TestRulesFollow(t *testing.T) {
	t.Parallel()
	pool, secret := testworld.NewPool(t), []byte("a secret of more than 16 bytes")
	config := policies.Config{PollEvery: time.Hour, KeySecret: secret} // it listens
	here, there := open(t, pool, config), open(t, pool, config)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Policies: there.Policies, KeySecret: secret})
	for match, texts := range map[policies.Match][2]string{
		policies.MatchPrefix: {"bot-", "bot-1"}, policies.MatchPattern: {"*@spam.example", "a@spam.example"}, policies.MatchCIDR: {"203.0.113.0/24", "alice:203.0.113.9"},
	} {
		rule := policies.Override{Policy: "login", Key: texts[0], Match: match, Blocked: true, Until: time.Now().Add(time.Hour), Note: "attack"}
		there.await(t, apply(t, here.Policies, policies.Edit{SetOverrides: []policies.Override{rule}}))
		if r, err := l.Allow(t.Context(), login, texts[1]); err != nil || r.Allowed || r.Reason != limiter.ReasonBlocked || r.RetryAfter > time.Hour || r.RetryAfter < 50*time.Minute {
			t.Errorf("%s: %+v, %v", match, r, err)
		}
		if r, err := l.Allow(t.Context(), login, "other"); err != nil || !r.Allowed {
			t.Errorf("%s, another key: %+v, %v", match, r, err)
		}
		if all := overrides(t, there.Policies, "login"); len(all) != 1 || all[0].Key != texts[0] || all[0].Match != match || !all[0].Blocked || all[0].ChangedBy == "" {
			t.Errorf("%+v", all)
		}
		there.await(t, apply(t, here.Policies, policies.Edit{DeleteOverrides: []policies.Override{rule}, Note: "over"}))
		if r, err := l.Allow(t.Context(), login, texts[1]); err != nil || !r.Allowed {
			t.Errorf("%s, lifted: %+v, %v", match, r, err)
		}
		h, err := here.History(t.Context(), "login", 2)
		if err != nil || len(h) != 2 || h[1].Key != texts[0] || h[1].Note != "attack" || h[1].OverrideAfter.Match != match || !h[1].OverrideAfter.Blocked ||
			h[0].Note != "over" || h[0].OverrideBefore.Match != match || h[0].OverrideAfter != nil {
			t.Errorf("%s: %+v, %v", match, h, err)
		}
	}
	if err := func() error {
		_, err := here.Apply(t.Context(), policies.Edit{DeleteOverrides: []policies.Override{{Policy: "login", Key: "bot-", Match: policies.MatchPrefix}}})
		return err
	}(); !errors.Is(err, policies.ErrNoPolicy) || !strings.Contains(err.Error(), `for prefix "bot-"`) {
		t.Errorf("deleted twice: %v", err)
	}
}

// TestRulesNeedNoStatement: a rule decides before any statement, without a connection too.
func TestRulesNeedNoStatement(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	p := open(t, pool, policies.Config{PollEvery: time.Hour, DisableListen: true})
	apply(t, p.Policies, policies.Edit{SetOverrides: []policies.Override{
		{Policy: "login", Key: "bot-", Match: policies.MatchPrefix, Blocked: true}, {Policy: "login", Key: "vip-", Match: policies.MatchPrefix, Unlimited: true}}})
	closed := testworld.Connect(t, pool.Config().ConnString())
	l := testworld.NewLimiter(t, closed, &limiter.Config{Policies: p.Policies})
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.Succeed(t, tx.Rollback(t.Context()))
	closed.Close()
	for name, in := range map[string]interface {
		AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error)
		Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error)
	}{"limiter": l, "transaction": l.InTx(tx)} {
		if all, err := in.AllowAll(t.Context(), login.Request("other", 1), login.Request("bot-1", 1)); err != nil || all.Allowed || all.DeniedBy != 1 {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
		if all, err := in.AllowAll(t.Context(), login.Request("vip-1", 1)); err != nil || !all.Allowed {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
		if r, err := in.Reserve(t.Context(), login.Request("bot-1", 1), time.Minute); err != nil || r.Result.Allowed {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if r, err := in.Reserve(t.Context(), login.Request("other", 1), time.Minute); err == nil {
			t.Errorf("%s, another key: %+v", name, r)
		}
	}
}

// TestRulesInSQL: the table refuses what is not a rule, and more than 1,000 of a policy.
func TestRulesInSQL(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	const insert = `INSERT INTO pglimit_override (policy, key, match, blocked) `
	refused := func(values, code, constraint string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), insert+values)
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.Code != code || !strings.Contains(answer.ConstraintName+answer.Message, constraint) {
			t.Errorf("%s: %v", values, err)
		}
	}
	for values, constraint := range map[string]string{
		`('p', 'k', 'regexp', true)`:                "match must be empty, prefix, pattern or cidr",
		`('p', 'k', 'prefix', false)`:               "an override must change something",
		`('p', repeat('a', 129), 'pattern', true)`:  "a pattern must have at most 128 bytes and 8 ?",
		`('p', repeat('?', 9), 'pattern', true)`:    "a pattern must have at most 128 bytes and 8 ?",
		`('p', '203.0.113.7', 'cidr', true)`:        "a cidr must be a network such as 203.0.113.0/24",
		`('p', '10.1/16', 'cidr', true)`:            "a cidr must be a network such as 203.0.113.0/24",
		`('p', '10.0.0.0/08', 'cidr', true)`:        "a cidr must be a network such as 203.0.113.0/24",
		`('p', '010.0.0.0/8', 'cidr', true)`:        "a cidr must be a network such as 203.0.113.0/24",
		`('p', '2001:db8::/032', 'cidr', true)`:     "a cidr must be a network such as 203.0.113.0/24",
		`('p', '2001:DB8::/32', 'cidr', true)`:      "a cidr must be a network such as 203.0.113.0/24",
		`('p', '::ffff:1.2.3.0/120', 'cidr', true)`: "a cidr must be a network such as 203.0.113.0/24",
	} {
		refused(`VALUES `+values, "23514", constraint)
	}
	refused(`VALUES ('p', '203.0.113.7/24', 'cidr', true)`, "22P02", "203.0.113.7/24")
	for columns, constraint := range map[string]string{"limit_units": "blocked excludes all other changes", "burst": "blocked excludes all other changes"} {
		_, err := pool.Exec(t.Context(), fmt.Sprintf(`INSERT INTO pglimit_override (policy, key, blocked, %s) VALUES ('p', 'k', true, 1)`, columns))
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.ConstraintName != constraint {
			t.Errorf("%s: %v", columns, err)
		}
	}
	_, err := pool.Exec(t.Context(), `INSERT INTO pglimit_override (policy, key, match, limit_units) VALUES ('p', 'k', 'prefix', 1)`)
	if err == nil || !strings.Contains(err.Error(), "match needs blocked or unlimited") {
		t.Errorf("%v", err)
	}
	testworld.Exec(t, pool, insert+`SELECT 'p', 'bot-' || i, 'prefix', true FROM generate_series(1, 1000) AS i`)
	refused(`VALUES ('p', 'more', 'pattern', true)`, "54000", "at most 1,000 overrides with a match")
	p := open(t, pool, policies.Config{DisableListen: true, PollEvery: time.Hour})
	_, err = p.Apply(t.Context(), policies.Edit{SetOverrides: []policies.Override{{Policy: "p", Key: "more", Match: policies.MatchPattern, Blocked: true}}})
	if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), "delete those that have ended") {
		t.Errorf("%v", err)
	}
	if _, err := pool.Exec(t.Context(), `UPDATE pglimit_override SET match = 'pattern', key = key || '*' WHERE policy = 'p'`); err == nil || !strings.Contains(err.Error(), "of these 100 patterns") {
		t.Errorf("an update: %v", err)
	}
	refused(`SELECT 'r', i || '*', 'pattern', true FROM generate_series(1, 101) AS i`, "54000", "of these 100 patterns")
	testworld.Exec(t, pool, insert+`VALUES ('q', 'more', 'pattern', true), ('p', 'more', '', true)`)
	if all := overrides(t, p.Policies, "p"); len(all) != 1001 || !slices.ContainsFunc(all, func(o policies.Override) bool { return o.Key == "more" && o.Match == "" }) {
		t.Errorf("%d overrides", len(all))
	}
}

// TestAnchorsInSQL: the tables refuse the anchors that Validate refuses.
func TestAnchorsInSQL(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	texts := []string{"", "31", "2024-01-31T9:30", "2024-01-31T24:00", "2024-01-31T23:59", "2024-01-31T23:60", "2024-01-31T09:30:00", "2024-01-31 09:30", "0999-01-01", "1000-01-01", "1000-02-29", "9999-12-31", "10000-01-01", "2024-13-01", "2024-00-10", "2024-01-00", "2024-1-31", "2024-01-31\n"}
	for month := 1; month <= 12; month++ {
		for day := 28; day <= 32; day++ {
			texts = append(texts, fmt.Sprintf("2024-%02d-%02d", month, day), fmt.Sprintf("2023-%02d-%02d", month, day))
		}
	}
	for _, year := range []int{1600, 1700, 1896, 1900, 2000, 2004, 2012, 2026, 2100, 2110, 2196, 2200, 2400, 2500} {
		texts = append(texts, fmt.Sprintf("%d-02-29T00:00", year))
	}
	refused := 0
	for i, text := range texts {
		p := limiter.Policy{Name: fmt.Sprintf("p%d", i), Algorithm: limiter.FixedWindow, Limit: 1, Calendar: limiter.Year, Anchor: text}
		_, err := pool.Exec(t.Context(), `INSERT INTO pglimit_policy (name, algorithm, limit_units, calendar, anchor) VALUES ($1, 'fixed_window', 1, 'year', $2)`, p.Name, text)
		_, err2 := pool.Exec(t.Context(), `INSERT INTO pglimit_override (policy, key, limit_units, anchor) VALUES ($1, 'k', 1, $2)`, p.Name, text)
		if bad := p.Validate(); (bad == nil) != (err == nil) || (bad == nil) != (err2 == nil) {
			t.Errorf("%q: Validate says %v, the tables %v and %v", text, bad, err, err2)
		} else if bad != nil {
			refused++
		}
	}
	if refused < 50 || refused > len(texts)/2 {
		t.Errorf("%d of %d were refused", refused, len(texts))
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, anchor) VALUES ('p', 'fixed_window', 1, 1, '2024-01-31')`); err == nil || !strings.Contains(err.Error(), "anchor requires a calendar") {
		t.Error(err)
	}
}

// TestAttemptsInSQL: the table refuses the policies of attempts and of slots, and the bounds of keys,
// that Validate refuses.
func TestAttemptsInSQL(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	good := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 3, Period: time.Hour, BlockFor: time.Minute}
	refused := 0
	for i, change := range []func(p *limiter.Policy){
		func(*limiter.Policy) {},
		func(p *limiter.Policy) { p.Limit = 1 },
		func(p *limiter.Policy) { p.Limit = 0.5 },
		func(p *limiter.Policy) { p.Limit = 2.5 },
		func(p *limiter.Policy) { p.Burst = 100 },
		func(p *limiter.Policy) { p.Burst = 101 },
		func(p *limiter.Policy) { p.Burst = 1.5 },
		func(p *limiter.Policy) { p.BlockFor = 0 },
		func(p *limiter.Policy) { p.BlockFor = p.Period },
		func(p *limiter.Policy) { p.BlockFor = p.Period + 1000 },
		func(p *limiter.Policy) { p.BlockGrowth = 1 },
		func(p *limiter.Policy) { p.BlockGrowth = 1000 },
		func(p *limiter.Policy) { p.BlockGrowth = 0.9 },
		func(p *limiter.Policy) { p.BlockGrowth = 1001 },
		func(p *limiter.Policy) { p.BlockMax = time.Minute },
		func(p *limiter.Policy) { p.BlockMax = time.Second },
		func(p *limiter.Policy) { p.BlockFor, p.BlockMax = 2*p.Period, 3*p.Period },
		func(p *limiter.Policy) { p.OnError = limiter.FailOpen },
		func(p *limiter.Policy) { p.OnError = limiter.FailLocal },
		func(p *limiter.Policy) { p.Lease = 0.1 },
		func(p *limiter.Policy) { p.Aligned = true },
		func(p *limiter.Policy) { p.Tick = time.Second },
		func(p *limiter.Policy) { p.Calendar, p.Period = limiter.Day, 0 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockGrowth = limiter.GCRA, 2 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockMax = limiter.GCRA, time.Hour },
		func(p *limiter.Policy) { p.MaxKeys = 1 },
		func(p *limiter.Policy) { p.Algorithm, p.RestLimit = limiter.GCRA, 1 },
		func(p *limiter.Policy) { p.Algorithm, p.MaxKeys, p.RestLimit = limiter.GCRA, 1, 1<<53 },
		func(p *limiter.Policy) {
			p.Algorithm, p.MaxKeys, p.Burst, p.RestLimit = limiter.GCRA, 1, 3<<20, 1<<33
		},
		func(p *limiter.Policy) {
			p.Algorithm, p.MaxKeys, p.Burst, p.RestLimit = limiter.GCRA, 1, 3<<20, 1<<33+1
		},
		func(p *limiter.Policy) {
			p.Algorithm, p.MaxKeys, p.Burst, p.RestLimit = limiter.GCRA, 1, 3<<20, 1<<53
		},
		func(p *limiter.Policy) { p.Algorithm, p.MaxKeys, p.Burst, p.RestLimit = limiter.GCRA, 1, 3e-9, 0.5 },
		func(p *limiter.Policy) {
			p.Algorithm, p.Limit, p.MaxKeys, p.Burst, p.RestLimit = limiter.GCRA, 0, 1, 1, 1
		},
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor = limiter.Concurrency, 0 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Burst = limiter.Concurrency, 0, 3 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Burst = limiter.Concurrency, 0, 4 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Limit = limiter.Concurrency, 0, 1.5 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Limit = limiter.Concurrency, 0, 0.5 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Period = limiter.Concurrency, 0, time.Second },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Period = limiter.Concurrency, 0, time.Millisecond },
		func(p *limiter.Policy) { p.Algorithm = limiter.Concurrency },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.Lease = limiter.Concurrency, 0, 0.1 },
		func(p *limiter.Policy) { p.Algorithm, p.BlockFor, p.OnError = limiter.Concurrency, 0, limiter.FailOpen },
	} {
		p := good
		change(&p)
		p.Name = fmt.Sprintf("code%d", i)
		_, err := pool.Exec(t.Context(), `INSERT INTO pglimit_policy (name, algorithm, limit_units, period_s, burst, tick_s, block_for_s, block_growth, block_max_s, on_error, lease, aligned, calendar, max_keys, rest_limit)
			VALUES ($1, $2, $3, nullif($4::float8, 0), nullif($5::float8, 0), $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
			p.Name, string(p.Algorithm), p.Limit, p.Period.Seconds(), p.Burst, p.Tick.Seconds(), p.BlockFor.Seconds(), p.BlockGrowth, p.BlockMax.Seconds(), p.OnError.String(), p.Lease, p.Aligned, string(p.Calendar), p.MaxKeys, p.RestLimit)
		if bad := p.Validate(); (bad == nil) != (err == nil) {
			t.Errorf("%+v: Validate says %v, the table %v", p, bad, err)
		} else if bad != nil {
			refused++
		}
	}
	if refused != 30 {
		t.Errorf("%d were refused", refused)
	}
}
