package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// awaitDefaults waits until a program is listed with n default policies.
func awaitDefaults(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	testworld.Eventually(t, "the program is listed", func(ctx context.Context) (listed bool, err error) {
		err = pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pglimit_program WHERE jsonb_array_length(defaults) = $1)`, n).Scan(&listed)
		return listed, err
	})
}

// TestWhy: each policy of a key has its limit in force, its override and its denials by their
// reason, now and at an earlier moment.
func TestWhy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	log := must.OK(deniallog.New(pool, nil))(t)
	live := must.OK(policies.Open(ctx, pool, &policies.Config{Program: "shop"}))(t)
	t.Cleanup(func() { live.Close() })
	stored := limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 10, Period: 1000 * time.Hour}
	compiled, shadow, inline, moved := stored, stored, stored, stored
	compiled.Name, shadow.Name, inline.Name, moved.Name = "compiled", "shadow", "inline", "moved"
	shadow.Shadow = true
	set := func(edit policies.Edit) (after time.Time) {
		t.Helper()
		must.OK(live.Apply(ctx, edit))(t)
		return testworld.Value[time.Time](t, pool, `SELECT clock_timestamp()`)
	}
	override := policies.Override{Policy: "api", Key: "k", Limit: new(4.0), Note: "trial"}
	over := stored
	over.Name = "over"
	other := moved
	other.Algorithm = limiter.GCRA
	before := set(policies.Edit{Set: []policies.Stored{{Policy: stored}, {Policy: other}, {Policy: over}}, SetOverrides: []policies.Override{override, {Policy: "over", Key: "k", Limit: new(2.0), Note: "more"}}})
	override.Limit, override.Note = new(3.0), "abuse"
	set(policies.Edit{SetOverrides: []policies.Override{override}})
	must.Succeed(t, live.Default(compiled, shadow, moved))
	awaitDefaults(t, pool, 3)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenialLog: log, Policies: live, DisableDenyCache: true})
	all := func(requests ...limiter.Request) { must.OK(l.AllowAll(ctx, requests...))(t) }
	all(stored.Request("k", 3))
	all(stored.Request("k", 2), compiled.Request("k", 1)) // by the limit, and leaves no row for compiled
	all(compiled.Request("k", 11))                        // never
	testworld.Must(t)(l.AllowN(ctx, shadow, "k", 10))
	testworld.Must(t)(l.AllowN(ctx, shadow, "k", 5)) // passes
	must.Succeed(t, l.Block(ctx, inline, "k", time.Hour))
	testworld.Must(t)(l.Allow(ctx, inline, "k"))
	testworld.Must(t)(l.Allow(ctx, moved, "k"))
	testworld.Must(t)(l.Allow(ctx, stored, "other"))
	must.Succeed(t, log.Flush(ctx))
	atBefore := "api limited: 4 database, override 4 trial"
	if testworld.Value[bool](t, pool, `SELECT slot_us <= $1 FROM pglimit_denial WHERE policy = 'api' AND key = 'k'`, before.UnixMicro()) { // in the same minute
		atBefore += ", denied 1 0 0 0 of 2, shadowed 0, room true"
	}

	for _, c := range []struct {
		at     time.Time
		filter inspect.Filter
		want   []string
	}{
		{time.Time{}, inspect.Filter{}, []string{
			"api limited: 3 database, override 3 abuse, denied 1 0 0 0 of 2, shadowed 0, room true",
			"compiled limited: 10 default, denied 0 0 1 0 of 11, shadowed 0, room false",
			"inline blocked: unknown, denied 0 1 0 0 of 1, shadowed 0, room true",
			"moved ok: unknown",
			"over ok: 2 database, override 2 more",
			"shadow shadow: 10 default, denied 1 0 0 0 of 5, shadowed 1, room true",
		}},
		{before, inspect.Filter{Policy: "api"}, []string{atBefore}},
		{before.Add(-2 * time.Minute), inspect.Filter{Policy: "api"}, []string{"api limited: unknown"}},
		{time.Time{}, inspect.Filter{Policy: "moved", Algorithm: "gcra"}, []string{"moved ok: 10 database"}},
		{time.Time{}, inspect.Filter{Policy: "api", Algorithm: "gcra"}, nil},
		{time.Time{}, inspect.Filter{Policy: "none"}, nil},
	} {
		why, err := inspect.New(pool).Why(ctx, live, "k", inspect.WhyQuery{Key: "k", Filter: c.filter, At: c.at})
		got := rendered(t, why)
		if err != nil || !slices.Equal(got, c.want) || why.Key != "k" || why.At.Sub(why.Since) < time.Hour || !c.at.IsZero() && !why.At.Equal(c.at) {
			t.Errorf("at %v of %+v: from %v to %v, %v\n%q, want\n%q", c.at, c.filter, why.Since, why.At, err, got, c.want)
		}
	}
	refusesWhy(t, pool, live)
}

// rendered has each policy of an answer as a line.
func rendered(t *testing.T, why inspect.Why) []string {
	t.Helper()
	var got []string
	for _, p := range why.Policies {
		text := fmt.Sprintf("%s %s: ", p.Policy, p.Now.Status)
		if p.InForce == nil {
			text += "unknown"
		} else {
			text += fmt.Sprint(p.InForce.Limit, " ", p.Origin)
		}
		if (p.Origin == inspect.OriginDefault) != (p.Program != "") || (p.Origin == inspect.OriginDatabase) != (p.ChangedBy != "") {
			t.Errorf("of a program, or changed by: %+v", p)
		}
		if o := p.Override; o != nil {
			text += fmt.Sprint(", override ", *o.Limit, " ", o.Note)
		}
		if d := p.Denied; d != nil {
			text += fmt.Sprintf(", denied %d %d %d %d of %v, shadowed %d, room %v", d.ByLimit, d.Blocked, d.AboveBurst, d.Overloaded, d.Units, d.Shadowed, d.RetryAt != nil)
			if d.Denials != d.ByLimit+d.Blocked+d.AboveBurst+d.Overloaded || d.FirstDeniedAt.After(d.LastDeniedAt) || d.LastDeniedAt.Sub(d.FirstDeniedAt) > 2*time.Minute {
				t.Errorf("%+v", d)
			}
		}
		got = append(got, text)
	}
	return got
}

// refusesWhy: a query that is not valid, or whose context has ended, gets an error.
func refusesWhy(t *testing.T, pool *pgxpool.Pool, live *policies.Policies) {
	t.Helper()
	ctx := t.Context()
	for _, q := range []inspect.WhyQuery{{}, {Key: "k", Within: -1}, {Key: "k", Within: 91 * 24 * time.Hour}, {Key: "k", At: time.Now().Add(time.Hour)}, {Key: "k", Filter: inspect.Filter{Algorithm: "x"}}} {
		if _, err := inspect.New(pool).Why(ctx, live, cmp.Or(q.Key, "k"), q); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := inspect.New(pool).Why(ended, live, "k", inspect.WhyQuery{Key: "k"}); err == nil {
		t.Error("no error")
	}
}

// TestBlockedByOverride: a key that an override blocks is so for all questions, with a row and
// without. Of a hash only a question with the key itself knows that.
func TestBlockedByOverride(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, secret := range [][]byte{nil, []byte("sixteen bytes at least")} {
		pool := testworld.NewPool(t)
		live := must.OK(policies.Open(ctx, pool, &policies.Config{KeySecret: secret}))(t)
		t.Cleanup(func() { live.Close() })
		p := policy("p", limiter.TokenBucket)
		rule := func(key string, m policies.Match) policies.Override {
			return policies.Override{Policy: "p", Key: key, Match: m, Blocked: true}
		}
		free, ended := rule("203.0.113.128/25", policies.MatchCIDR), rule("ended-", policies.MatchPrefix)
		free.Blocked, free.Unlimited, ended.Until = false, true, time.Now().Add(-time.Minute)
		must.OK(live.Apply(ctx, policies.Edit{Set: []policies.Stored{{Policy: p}}, SetOverrides: []policies.Override{rule("one", ""), {Policy: "p", Key: "bot-2", Limit: new(5.0)},
			rule("bot-", policies.MatchPrefix), rule("*@spam", policies.MatchPattern), rule("203.0.113.0/24", policies.MatchCIDR), free, ended}}))(t)
		l, i := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret}), inspect.New(pool)
		i.Hashed = secret != nil
		for key, want := range map[string]string{
			"one": "blocked by ", "bot-1": "blocked by prefix", "bot-2": "blocked by prefix", "a@spam": "blocked by pattern", "bob:203.0.113.9": "blocked by cidr", "203.0.113.200": "ok", "ended-1": "ok", "other": "ok",
		} {
			stored := keys.Stored(key, secret)
			is := func(question, want string, all []inspect.Key) {
				t.Helper()
				all = slices.DeleteFunc(all, func(k inspect.Key) bool { return k.Key != stored })
				got := "nothing"
				if len(all) == 1 {
					if got = string(all[0].Status); all[0].BlockedBy != nil {
						got += " by " + all[0].BlockedBy.Match
					}
				}
				if got != want {
					t.Errorf("%s of %s: %s, want %s", question, key, got, want)
				}
			}
			for range 2 {
				found := must.OK(i.Find(ctx, inspect.Keys{Text: stored, Raw: key}, inspect.Filter{}, 10))(t)
				if why := must.OK(i.Why(ctx, live, key, inspect.WhyQuery{Key: stored, Raw: key}))(t); want != "ok" {
					is("find", want, found.Keys)
					is("why", want, []inspect.Key{why.Policies[0].Now})
					if match := strings.TrimPrefix(want, "blocked by "); string(why.Policies[0].Override.Match) != match || !slices.ContainsFunc(found.Overrides, func(o inspect.Override) bool { return o.Blocked && o.Match == match }) {
						t.Errorf("%s: %+v, %+v", key, why.Policies[0].Override, found.Overrides)
					}
				}
				use(t, l, p, key) // makes a row
			}
			if secret != nil && key != "one" {
				want = "ok" // as far as is known
			}
			is("top", want, must.OK(i.Top(ctx, inspect.TopQuery{By: inspect.ByShare, Limit: 1000}))(t).Keys)
		}
	}
}
