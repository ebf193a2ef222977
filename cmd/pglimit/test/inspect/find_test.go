package inspect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// names renders the rows found as "policy key", in their order.
func names(f inspect.Found) (all []string) {
	for _, k := range f.Keys {
		all = append(all, k.Policy+" "+k.Key)
	}
	return all
}

// deny records denials of a key, some time ago.
func deny(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, key string, denials int, ago time.Duration) {
	t.Helper()
	testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
		SELECT $4, 1, 2, us / 60000000 * 60000000, us, $1, $2, $3
		FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint - $5::bigint AS us) AS c`, p.Name, key, string(algorithm.Name(p.Algorithm).Table()), denials, ago.Microseconds())
}

// override makes an override. A trigger notes it in the history.
func override(t *testing.T, pool *pgxpool.Pool, policy, key string) {
	t.Helper()
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, limit_units) VALUES ($1, $2, 3)`, policy, key)
}

func TestFindUnderEveryPolicy(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
	var want []string
	for _, p := range everyTable() {
		use(t, l, p, "alice", "alicex", "Alice", "bob")
		want = append(want, p.Name+" alice")
	}
	slices.Sort(want)
	// The same name and key under two algorithms.
	other := policy("fixed_window", limiter.TokenBucket)
	use(t, l, other, "alice")
	want = append(want, "fixed_window alice")
	slices.Sort(want)
	r := testworld.Reserve(t, l, other.Request("alice", 2), time.Hour)
	cancelled := testworld.Reserve(t, l, other.Request("alice", 1), time.Hour)
	must.Succeed(t, l.Cancel(t.Context(), cancelled.ID))
	override(t, pool, "ghost", "alice") // a policy without rows
	override(t, pool, "ghost", "bob")
	deny(t, pool, other, "alice", 5, time.Hour)
	deny(t, pool, other, "alice", 4, 2*time.Hour)
	deny(t, pool, other, "alice", 8, 30*time.Hour)
	deny(t, pool, other, "bob", 7, time.Hour)

	found, err := i.Find(t.Context(), exact("alice"), inspect.Filter{}, 100)
	if err != nil || !slices.Equal(names(found), want) || found.More {
		t.Errorf("found %q, %v, want %q", names(found), err, want)
	}
	if len(found.Reservations) != 1 || found.Reservations[0].ID != r.ID || found.Reservations[0].Units != 2 {
		t.Errorf("reservations: %+v", found.Reservations)
	}
	if len(found.Overrides) != 1 || found.Overrides[0].Policy != "ghost" || *found.Overrides[0].Limit != 3 {
		t.Errorf("overrides: %+v", found.Overrides)
	}
	if len(found.Denials) != 1 || found.Denials[0].Denials != 9 || found.Denials[0].Shadowed != 2 {
		t.Errorf("denials: %+v", found.Denials)
	}
	narrow, err := i.Find(t.Context(), exact("alice"), inspect.Filter{Policy: "fixed_window", Algorithm: algorithm.FixedWindow}, 100)
	if err != nil || !slices.Equal(names(narrow), []string{"fixed_window alice"}) || len(narrow.Reservations)+len(narrow.Overrides)+len(narrow.Denials) > 0 {
		t.Errorf("under one policy and algorithm: %+v, %v", narrow, err)
	}
	cut, err := i.Find(t.Context(), exact("alice"), inspect.Filter{}, 3)
	if err != nil || len(cut.Keys) != 3 || !cut.More {
		t.Errorf("cut at 3: %q, more %v, %v", names(cut), cut.More, err)
	}
	if none, err := i.Find(t.Context(), exact("carol"), inspect.Filter{}, 3); err != nil || !none.Empty() || none.More {
		t.Errorf("of a key that is not there: %+v, %v", none, err)
	}
	for _, c := range []struct {
		keys   inspect.Keys
		filter inspect.Filter
		limit  int
	}{
		{exact(""), inspect.Filter{}, 1}, {prefix(""), inspect.Filter{}, 1}, {exact("a\x00"), inspect.Filter{}, 1}, {exact("\xff"), inspect.Filter{}, 1},
		{exact(strings.Repeat("x", 1025)), inspect.Filter{}, 1}, {exact("a"), inspect.Filter{Algorithm: "gcra; DROP"}, 1}, {exact("a"), inspect.Filter{}, 0}, {exact("a"), inspect.Filter{}, 10_001},
	} {
		if _, err := i.Find(t.Context(), c.keys, c.filter, c.limit); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestFindByPrefix compares prefixes with strings.HasPrefix, over keys that mean something
// to LIKE, that end a range of characters, or that sort in another order in a language.
func TestFindByPrefix(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, pool *pgxpool.Pool, keys []string) {
		i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
		p, q := policy("p", limiter.GCRA), policy("q", limiter.SlidingWindowLog)
		use(t, l, p, keys...)
		use(t, l, q, keys...)
		prefixes := map[string]bool{}
		for _, key := range keys {
			for n := range key {
				prefixes[key[:n]] = true
			}
			prefixes[key] = true
			prefixes[key+"x"] = true
		}
		delete(prefixes, "")
		for text := range prefixes {
			var want []string
			for _, name := range []string{"p ", "q "} {
				var matching []string
				for _, key := range keys {
					if strings.HasPrefix(key, text) {
						matching = append(matching, name+key)
					}
				}
				slices.Sort(matching)
				want = append(want, matching...)
			}
			found, err := i.Find(t.Context(), prefix(text), inspect.Filter{}, 10_000)
			if err != nil || !slices.Equal(names(found), want) {
				t.Errorf("prefix %q: found %q, %v, want %q", text, names(found), err, want)
			}
		}
	}
	t.Run("UTF-8", func(t *testing.T) {
		t.Parallel()
		random := rand.New(rand.NewPCG(3, 4))
		characters := []rune{'a', 'b', 'B', '%', '_', '\\', '\'', 'é', 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x10FFFE, 0x10FFFF}
		set := map[string]bool{"a%b": true, "axb": true, "a_b": true, "a\\b": true, "a": true, "b": true, "aa": true, "A": true, "ab\U0010FFFF": true, "\U0010FFFF\U0010FFFF": true}
		for len(set) < testworld.Size(60, 120) {
			var key []rune
			for range 1 + random.IntN(3) {
				key = append(key, characters[random.IntN(len(characters))])
			}
			set[string(key)] = true
		}
		var keys []string
		for key := range set {
			keys = append(keys, key)
		}
		run(t, testworld.NewPool(t), keys)
	})
	t.Run("LATIN1", func(t *testing.T) {
		t.Parallel()
		run(t, testworld.Connect(t, testworld.Latin1(t)), []string{"a", "aÿ", "aÿÿ", "b", "ÿ", "ÿa", "é", "aé"})
	})
}

// TestFindReadsWhatItMust: Find reads one row of each policy, and the rows that it returns.
func TestFindReadsWhatItMust(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool, statements := traced(t, address)
	for _, a := range []algorithm.Name{algorithm.GCRA, algorithm.SlidingWindowLog} {
		many(t, pool, a, 4, 2000)
	}
	testworld.Exec(t, pool, `INSERT INTO pglimit_denial SELECT 1, 0, 0, 0, 0, 1, c.us - i, c.us - i, 0, false, 'p' || i % 4, 'k' || i, 'token_bucket'
		FROM generate_series(1, 4000) AS i, (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, unlimited, match) SELECT 'p' || i % 4, 'k' || i, true, CASE WHEN i > 3980 THEN 'prefix' ELSE '' END FROM generate_series(1, 4000) AS i`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_reservation SELECT 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 'open', 'token_bucket', 'i' || i, 'p' || i % 4, 'k' || i FROM generate_series(1, 4000) AS i`)
	testworld.Exec(t, pool, `ANALYZE pglimit_denial, pglimit_override, pglimit_reservation`)
	i := inspect.New(pool)
	for n, k := range map[int]inspect.Keys{8: exact("k1003"), 6: prefix("k1003")} {
		statements.take()
		found, err := i.Find(t.Context(), k, inspect.Filter{}, 100)
		if err != nil || len(found.Keys) != 9 {
			t.Fatalf("%+v: %d keys, %v", k, len(found.Keys), err)
		}
		made := statements.take()
		if len(made) != n {
			t.Fatalf("%d statements", len(made))
		}
		for _, s := range made {
			got := plan(t, pool, s.SQL, s.Args...)
			// Programs are few, and a policy is found by its name.
			got = strings.NewReplacer("Seq Scan on pglimit_program", "", "(name = f.policy)", "(policy = f.policy)").Replace(got)
			if strings.Contains(got, "Seq Scan on pglimit_") {
				t.Errorf("%+v scans a table:\n%s", k, got)
			}
			for _, line := range strings.Split(got, "\n") {
				var rows, removed int
				if _, after, ok := strings.Cut(line, "rows="); ok {
					fmt.Sscanf(after, "%d", &rows)
				}
				if _, after, ok := strings.Cut(line, "Removed by Filter: "); ok {
					fmt.Sscanf(after, "%d", &removed)
				}
				whole := strings.Contains(line, "Index Cond") && !strings.Contains(line, "policy = ") && !strings.Contains(line, "policy > ")
				if rows > 100 || removed > 10 || whole {
					t.Errorf("%+v reads much: %s\nin\n%s", k, line, got)
				}
			}
		}
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
	a, b := policy("a", limiter.FixedWindow), policy("b", limiter.SlidingWindowLog)
	for n, key := range []string{"one", "two", "three"} {
		testworld.Must(t)(l.Charge(t.Context(), a, key, float64(n+1)))
		testworld.Must(t)(l.Charge(t.Context(), b, key, float64(2*n+1)))
	}
	if err := l.Block(t.Context(), b, "fresh", time.Hour); err != nil { // no burst, and so no share
		t.Fatal(err)
	}
	deny(t, pool, a, "two", 5, 2*time.Minute)
	deny(t, pool, a, "two", 5, 3*time.Minute)
	deny(t, pool, b, "gone", 7, 30*time.Second)
	deny(t, pool, b, "one", 20, 25*time.Hour)
	deny(t, pool, b, "one", 30, 40*time.Minute)
	deny(t, pool, b, "", 2, 90*time.Second)
	testworld.Exec(t, pool, `UPDATE pglimit_fixed_window SET updated_at_us = updated_at_us - 7200000000 WHERE key IN ('two', 'one')`)
	for _, c := range []struct {
		q    inspect.TopQuery
		want string
	}{
		{inspect.TopQuery{By: inspect.ByShare, Limit: 100}, "b fresh, b three, a three, b two, a two, a one, b one, b gone"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 3}, "b fresh, b three, a three"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 100, Within: time.Hour}, "b fresh, b three, a three, b two, a two, b one, b gone"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 100, Within: time.Minute, Filter: inspect.Filter{Policy: "a"}}, "a three"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 100, Filter: inspect.Filter{Policy: "a"}}, "a three, a two, a one"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 2, Filter: inspect.Filter{Algorithm: algorithm.SlidingWindowLog}}, "b fresh, b three"},
		{inspect.TopQuery{By: inspect.ByShare, Limit: 2, Filter: inspect.Filter{Policy: "a", Algorithm: algorithm.SlidingWindowLog}}, ""},
		{inspect.TopQuery{By: inspect.ByRecent, Limit: 100}, "b fresh, b three, a three, b two, b one, b gone, a two, a one"},
		{inspect.TopQuery{By: inspect.ByRecent, Limit: 2}, "b fresh, b three"},
		{inspect.TopQuery{By: inspect.ByRecent, Limit: 9, Within: time.Hour, Filter: inspect.Filter{Policy: "a", Algorithm: algorithm.FixedWindow}}, "a three, a two"},
		{inspect.TopQuery{By: inspect.ByDenials, Limit: 100}, "a two 10, b gone 7, b  2"},
		{inspect.TopQuery{Limit: 100}, "a two 10, b gone 7, b  2"},
		{inspect.TopQuery{Limit: 2, Filter: inspect.Filter{Algorithm: algorithm.GCRA}}, ""},
		{inspect.TopQuery{By: inspect.ByDenials, Limit: 1}, "a two 10"},
		{inspect.TopQuery{By: inspect.ByDenials, Limit: 9, Filter: inspect.Filter{Policy: "b"}}, "b gone 7, b  2"},
		{inspect.TopQuery{By: inspect.ByDenials, Limit: 9, Within: time.Hour}, "b one 30, a two 10, b gone 7, b  2"},
		{inspect.TopQuery{By: inspect.ByDenials, Limit: 9, Within: 100 * time.Second}, "b gone 7, b  2"},
	} {
		top, err := i.Top(t.Context(), c.q)
		var got []string
		for _, k := range top.Keys {
			text := k.Policy + " " + k.Key
			if top.By == inspect.ByDenials {
				text += fmt.Sprint(" ", k.RecentDenials)
				if (k.Level == nil) != (k.Key == "gone" || k.Key == "") || k.LastDeniedAt == nil || k.DenialsPerMinute <= 0 || (k.Status == inspect.Limited) != (k.Key == "gone") {
					t.Errorf("%+v: %+v", c.q, k)
				}
			}
			got = append(got, text)
		}
		if err != nil || strings.Join(got, ", ") != c.want {
			t.Errorf("%+v: got %q, %v, want %q", c.q, strings.Join(got, ", "), err, c.want)
		}
	}
	for _, q := range []inspect.TopQuery{{By: inspect.ByShare}, {By: inspect.ByShare, Limit: 1001}, {By: "size", Limit: 1},
		{By: inspect.ByShare, Limit: 1, Within: -1}, {By: inspect.ByDenials, Limit: 1, Within: 91 * 24 * time.Hour}, {By: inspect.ByShare, Limit: 1, Filter: inspect.Filter{Algorithm: "x"}}} {
		if _, err := i.Top(t.Context(), q); !errors.Is(err, limiter.ErrInvalid) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// TestStatus: a key's status is how it stands now, whatever writes its row.
func TestStatus(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testworld.NewPool(t)
	log := must.OK(deniallog.New(pool, nil))(t)
	live := must.OK(policies.Open(ctx, pool, nil))(t)
	t.Cleanup(func() { live.Close() })
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenialLog: log, Policies: live})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 1000 * time.Hour}
	shadow, stored := p, p
	shadow.Name, stored.Name = "shadow", "stored"
	shadow.Shadow = true
	must.Succeed(t, live.Default(shadow))
	awaitDefaults(t, pool, 1)
	must.OK(live.Apply(ctx, policies.Edit{
		Set:          []policies.Stored{{Policy: stored}},
		SetOverrides: []policies.Override{{Policy: "stored", Key: "override", Shadow: new(true)}, {Policy: "p", Key: "ended", Shadow: new(true), Until: time.Now().Add(-time.Hour)}},
	}))(t)
	for _, c := range []struct {
		policy limiter.Policy
		key    string
		costs  []float64
		want   inspect.Status
	}{
		{p, "ok", []float64{10}, inspect.OK},
		{p, "almost", []float64{501, 499}, inspect.Limited}, // by an AllowAll, which writes nothing
		{p, "full", []float64{1000}, inspect.Limited},
		{p, "blocked", []float64{1}, inspect.Blocked},
		{p, "ended", []float64{1000, 1}, inspect.Limited},
		{p, "large", []float64{1001}, inspect.Limited}, // and has no row
		{shadow, "default", []float64{1000, 1}, inspect.Shadowed},
		{shadow, "idle", []float64{10}, inspect.Shadowed},
		{stored, "k", []float64{1000, 1}, inspect.Limited},
		{stored, "override", []float64{1000, 1}, inspect.Shadowed},
	} {
		for i, cost := range c.costs {
			if i == 0 && cost <= p.Limit {
				testworld.Must(t)(l.AllowN(ctx, c.policy, c.key, cost))
			} else if _, err := l.AllowAll(ctx, c.policy.Request(c.key, cost+499), p.Request("other", 1)); err != nil {
				t.Fatal(err)
			}
		}
		if c.key == "blocked" {
			must.Succeed(t, l.Block(ctx, p, c.key, time.Hour))
			testworld.Must(t)(l.Allow(ctx, p, c.key))
		}
		must.Succeed(t, log.Flush(ctx))
		found := must.OK(inspect.New(pool).Find(ctx, exact(c.key), inspect.Filter{}, 10))(t)
		if len(found.Keys) != 1 || found.Keys[0].Status != c.want || (found.Keys[0].Level == nil) != (c.key == "large") || found.Keys[0].LastRequestAt == nil {
			t.Errorf("%s: %+v, want %s", c.key, found.Keys, c.want)
		}
	}
}

// TestStrangersInInspect finds and changes keys in bulk, with all planted objects in the
// search_path. It forgets the keys of the first policy only.
func TestStrangersInInspect(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := testworld.PlantedDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, pool, nil)
	policies := testworld.Variants(10, 10*time.Second)
	try := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, p := range policies {
		testworld.Must(t)(l.Allow(ctx, p, "k"))
	}
	code := limiter.Policy{Name: "code", Algorithm: limiter.Attempts, Limit: 1, Period: time.Hour, BlockFor: time.Hour}
	must.OK(l.Attempt(ctx, code, "k", limiter.AttemptOptions{From: "home"}))(t)
	must.OK(l.Acquire(ctx, limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 1, Period: time.Hour}, "k"))(t)
	i := inspect.New(pool)
	some := inspect.Filter{Policy: policies[0].Name, Algorithm: algorithm.Name(policies[0].Algorithm)}
	for _, f := range []inspect.Filter{{}, some} {
		for _, by := range inspect.Orders {
			q := inspect.TopQuery{By: by, Filter: f, Limit: 10}
			_, err := i.Top(ctx, q)
			try("top by "+string(by), err)
			q.Within = time.Hour
			_, err = i.Top(ctx, q)
			try("top of an hour by "+string(by), err)
		}
		for _, k := range []inspect.Keys{{Text: "k"}, {Text: "k", Prefix: true}} {
			_, err := i.Find(ctx, k, f, 10)
			try("find", err)
			_, err = i.Targets(ctx, k, f, 1000, true)
			try("traces", err)
		}
	}
	_, err := db.New().DashboardDenials(ctx, pool, db.DashboardDenialsParams{SizeUs: 1})
	try("denials of the dashboard", err)
	_, err = db.New().DashboardKeyDenials(ctx, pool, db.DashboardKeyDenialsParams{SizeUs: 1, Key: "k"})
	try("denials of a key of the dashboard", err)
	_, err = db.New().DashboardDenied(ctx, pool, db.DashboardDeniedParams{Policy: some.Policy, Key: "k"})
	try("denials of a policy of the dashboard", err)
	_, _, err = i.Names(ctx, "k", 10)
	try("names", err)
	_, _, err = i.Overrides(ctx, some.Policy, 10)
	try("overrides", err)
	_, _, err = i.Above(ctx, inspect.Target{Policy: some.Policy, Algorithm: "gcra", Key: "k"}, 1)
	try("keys above a burst", err)
	for what, f := range map[string]inspect.Filter{"all": {}, "one": some} {
		_, err := i.WithPart(ctx, "k", f, 1000, nil)
		try("keys with a part", err)
		_, err = i.FirstParts(ctx, "k", f, 1000)
		try("keys with a first part", err)
		all, err := i.Targets(ctx, inspect.Keys{Text: "k", Prefix: true}, f, 1000, false)
		try("targets", err)
		_, err = i.Block(ctx, all, time.Microsecond, inspect.Options{})
		try("block "+what, err)
		_, err = i.Unblock(ctx, all, inspect.Options{})
		try("unblock "+what, err)
		if what == "one" {
			_, err = i.Reset(ctx, all, inspect.Options{})
			try("reset "+what, err)
			_, err = i.Forget(ctx, append(all, inspect.Target{Policy: some.Policy, Key: "k"}), inspect.Options{})
			try("forget "+what, err)
		}
	}
}
