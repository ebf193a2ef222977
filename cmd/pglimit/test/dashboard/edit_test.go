package dashboard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/dashboard"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestSearch: a search finds the first keys that begin with a text, under all policies, each key
// once, whether rows, denials or overrides have it.
func TestSearch(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	l := testworld.NewLimiter(t, pool, nil)
	for _, a := range algorithm.Tables {
		p := ten("z", limiter.Algorithm(a))
		testworld.Must(t)(l.Charge(t.Context(), p, "alice:203.0.113.9", 1))
		denied(t, pool, p, "alice:1", 0, 1)
	}
	for i := range 20 {
		testworld.Must(t)(l.Charge(t.Context(), ten("a", limiter.GCRA), fmt.Sprintf("alicf:%02d", i), 1))
	}
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, match, limit_units, unlimited) VALUES ('y', 'alice', '', 5, false), ('y', 'alice:2*', 'pattern', NULL, true), ('y', 'bob', '', 5, false)`)
	for prefix, want := range map[string]string{
		"alice":       "alice alice:1 alice:203.0.113.9 false",
		"alice:2":     "alice:203.0.113.9 false",
		"ali":         "alice alice:1 alice:203.0.113.9 alicf:00 alicf:01 alicf:02 alicf:03 alicf:04 alicf:05 alicf:06 true",
		"b":           "bob false",
		"%":           "false",
		"203.0.113.9": "false",
	} {
		n := must.OK(s.Search(t.Context(), prefix))(t)
		if got := strings.TrimSpace(fmt.Sprint(strings.Join(n.Keys, " "), " ", n.More)); got != want {
			t.Errorf("%s: %s, want %s", prefix, got, want)
		}
	}
}

// TestEdit: edits are those of Policies.Apply, on keys as given and as stored, and are
// refused if anything was changed since their preview.
func TestEdit(t *testing.T) {
	t.Parallel()
	for _, secret := range [][]byte{nil, secret} {
		pool := testworld.NewPool(t)
		s := open(t, pool, secret)
		stored := keys.Stored("alice", secret)
		follower := must.OK(policies.Open(t.Context(), pool, &policies.Config{KeySecret: secret}))(t)
		defer follower.Close()
		policy := policies.Stored{Policy: ten("login", limiter.GCRA), Note: "why"}
		apply := func(e dashboard.Edit) {
			t.Helper()
			c := must.OK(s.Current(t.Context(), e))(t)
			e.Version = c.Version
			must.OK(s.Apply(t.Context(), e))(t)
			if _, err := s.Apply(t.Context(), e); c.Version != 0 && !errors.Is(err, policies.ErrChanged) {
				t.Errorf("%+v twice: %v", e, err)
			}
		}
		apply(dashboard.Edit{Policy: &policy})
		for _, o := range []struct {
			key    string
			stored bool
			limit  float64
		}{{"alice", false, 3}, {stored, true, 4}} {
			apply(dashboard.Edit{Override: &policies.Override{Policy: "login", Key: o.key, Limit: &o.limit, Until: time.Now().Add(time.Hour), Note: "trial"}, Stored: o.stored})
			testworld.Eventually(t, "a program follows", func(context.Context) (bool, error) {
				p, _, err := follower.For("login", "alice")
				return err == nil && p.Limit == o.limit, nil
			})
			all := must.OK(s.Overrides(t.Context(), "login"))(t)
			if len(all.Overrides) != 1 || all.Overrides[0].Key != stored || *all.Overrides[0].Limit != o.limit || all.Overrides[0].Note != "trial" || all.More {
				t.Errorf("%+v", all)
			}
			c := must.OK(s.Current(t.Context(), dashboard.Edit{Override: &policies.Override{Policy: "login", Key: o.key}, Stored: o.stored}))(t)
			if c.Policy == nil || c.Policy.Note != "why" || c.Match != "" || c.Override == nil || *c.Override.Limit != o.limit || c.Version != follower.Version() {
				t.Errorf("%+v", c)
			}
		}
		testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, match, blocked) VALUES ('login', '*', 'pattern', true)`)
		l := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret})
		testworld.Must(t)(l.Allow(t.Context(), policy.Policy, "alice"))
		status := func(want inspect.Status) {
			t.Helper()
			if k := must.OK(s.Key(t.Context(), as("alice")))(t); k.Keys[0].Status != want || (len(k.Overrides) == 2) != (want == inspect.Blocked) {
				t.Errorf("%+v, want %s", k, want)
			}
		}
		status(inspect.Blocked)
		testworld.Eventually(t, "the page follows", func(ctx context.Context) (bool, error) {
			c, err := s.Current(ctx, dashboard.Edit{Override: &policies.Override{Policy: "login", Key: "alice"}})
			return c.Match == policies.MatchPattern && c.Override != nil && *c.Override.Limit == 4 && c.Version == 4, err
		})
		apply(dashboard.Edit{Override: &policies.Override{Policy: "login", Key: "*", Match: policies.MatchPattern, Note: "lifted"}, Delete: true})
		status(inspect.OK)
		apply(dashboard.Edit{Override: &policies.Override{Policy: "login", Key: "alice", Note: "it is over"}, Delete: true})
		apply(dashboard.Edit{Policy: &policies.Stored{Policy: limiter.Policy{Name: "login"}, Note: "bye"}, Delete: true})
		h := must.OK(s.History(t.Context(), "", 10))(t)
		if len(h) != 7 || h[0].Note != "bye" || h[0].After != nil || h[1].Note != "it is over" || h[1].OverrideAfter != nil || h[2].Note != "lifted" || h[6].Note != "why" || h[6].ChangedBy == "" {
			t.Errorf("%+v", h)
		}
		if _, err := s.Apply(t.Context(), dashboard.Edit{Policy: &policy, Delete: true}); !errors.Is(err, policies.ErrNoPolicy) {
			t.Errorf("deleted twice: %v", err)
		}
	}
}

// TestOverridesBound: the list ends, and says so.
func TestOverridesBound(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, match, unlimited) SELECT 'p', 'k' || i, '', true FROM generate_series(1, 300) AS i`)
	testworld.Exec(t, pool, `INSERT INTO pglimit_override (policy, key, match, unlimited) VALUES ('p', '203.0.113.0/24', 'cidr', true)`)
	all := must.OK(open(t, pool, nil).Overrides(t.Context(), "p"))(t)
	if len(all.Overrides) != 200 || !all.More || all.Overrides[0].Match != "cidr" || all.Overrides[1].Key != "k1" {
		t.Errorf("%d, %v, %+v", len(all.Overrides), all.More, all.Overrides[:2])
	}
}

// TestFacts: denials since a time by their reasons, and keys above a burst, of a policy or a key.
func TestFacts(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	s := open(t, pool, nil)
	l := testworld.NewLimiter(t, pool, nil)
	p := ten("p", limiter.FixedWindow)
	for i, key := range []string{"a", "b", "c"} {
		testworld.Must(t)(l.Charge(t.Context(), p, key, float64(4*i+1)))
		testworld.Must(t)(l.Charge(t.Context(), ten("q", limiter.FixedWindow), key, 9))
		testworld.Must(t)(l.Charge(t.Context(), ten("p", limiter.GCRA), key, 9))
	}
	denied(t, pool, p, "a", 0, 10)
	denied(t, pool, p, "b", 3, 20)
	denied(t, pool, p, "b", 20, 40)
	denied(t, pool, ten("q", limiter.FixedWindow), "a", 0, 80)
	policy := dashboard.Edit{Policy: &policies.Stored{Policy: p}}
	of := func(key string) dashboard.Edit {
		return dashboard.Edit{Override: &policies.Override{Policy: "p", Key: key}}
	}
	for _, c := range []struct {
		e     dashboard.Edit
		hours float64
		burst float64
		want  string
	}{
		{policy, 24, 5, "70 3 6 9 12, 1 of 3"},
		{policy, 1, 1, "30 2 4 6 8, 2 of 3"},
		{of("b"), 24, 4, "60 2 4 6 8, 1 of 1"},
		{of("b"), 1, 5, "20 1 2 3 4, 0 of 1"},
		{of("none"), 24, 0, "0 0 0 0 0, 0 of 0"},
	} {
		f, err := s.Facts(t.Context(), c.e, limiter.FixedWindow, time.Now().Add(-time.Duration(c.hours*float64(time.Hour))), c.burst)
		got := fmt.Sprintf("%d %d %d %d %d, %d of %d", f.Denials, f.Shadowed, f.Blocked, f.AboveBurst, f.Overloaded, f.Above, f.Keys)
		if err != nil || got != c.want {
			t.Errorf("%+v: %s, %v, want %s", c, got, err, c.want)
		}
	}
	q := dashboard.Query{Order: inspect.ByDenials, Policy: "p", Limit: 5, Hours: 24}
	if k, err := s.Keys(t.Context(), q); err != nil || len(k.Rows) != 2 || k.Rows[0].Key != "b" || k.Rows[0].RecentDenials != 60 {
		t.Errorf("%+v, %v", k, err)
	}
}
