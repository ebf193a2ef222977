package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
)

// hourly returns a policy of limit units an hour.
func hourly(name string, limit float64) Policy {
	return Policy{Name: name, Algorithm: TokenBucket, Limit: limit, Period: time.Hour}
}

// asked asks pools for key k and returns what each gave and the calls of the store.
func asked(t *testing.T, s *spy, ask func(context.Context, ...Request) (Any, error), cost float64, pools ...Policy) (a Any, given []float64, calls []string) {
	t.Helper()
	requests := make([]Request, len(pools))
	for i, p := range pools {
		requests[i] = p.Request("k", cost)
	}
	s.set(nil)
	a = must.OK(ask(t.Context(), requests...))(t)
	for _, r := range a.PerRequest {
		given = append(given, r.Granted)
	}
	return a, given, s.sent()
}

// TestAnyAsksInTurn: a pool is asked only if those before it denied, and not if its own denial of
// that cost, or of less, is remembered. A split that the first pool has is one Take.
func TestAnyAsksInTurn(t *testing.T) {
	t.Parallel()
	l, s := watched(t, true, &Config{DenyCacheTTL: time.Hour})
	one, two, three := hourly("one", 5), hourly("two", 5), hourly("three", 100)
	for i, c := range []struct {
		cost  float64
		given []float64
		calls int
	}{
		{4, []float64{4, 0, 0}, 1},
		{2, []float64{0, 2, 0}, 2},
		{2, []float64{0, 2, 0}, 1}, // one's denial of 2 is remembered
		{1, []float64{1, 0, 0}, 1}, // and says nothing about 1
		{3, []float64{0, 0, 3}, 2}, // nor two's room about 3
		{3, []float64{0, 0, 3}, 1},
		{101, []float64{0, 0, 0}, 1}, // only three has to be looked at
		{101, []float64{0, 0, 0}, 0},
	} {
		a, given, calls := asked(t, s, l.AllowAny, c.cost, one, two, three)
		if !slices.Equal(given, c.given) || len(calls) != c.calls {
			t.Errorf("%d: %v units: %v gave, %v sent, %+v; want %v by %d", i, c.cost, given, calls, a, c.given, c.calls)
		}
	}
	a, given, calls := asked(t, s, l.AllowAnySplit, 7, three, one)
	if !slices.Equal(given, []float64{7, 0}) || !slices.Equal(calls, []string{"take"}) {
		t.Errorf("%v, %v, %+v", given, calls, a)
	}
	a, given, calls = asked(t, s, l.AllowAnySplit, 3, one, two, three)
	if !slices.Equal(given, []float64{0, 1, 2}) || !slices.Equal(calls, []string{"take any"}) {
		t.Errorf("%v, %v, %+v", given, calls, a)
	}
}

// TestAnyBeginsNoBlock: also if all pools deny, and what a denial would remember does not keep an
// Allow from the denial that begins one.
func TestAnyBeginsNoBlock(t *testing.T) {
	t.Parallel()
	l, s := watched(t, true, nil)
	one, two := hourly("one", 5), hourly("two", 5)
	one.BlockFor, two.BlockFor = time.Hour, time.Hour
	for range 2 {
		for _, ask := range []func(context.Context, ...Request) (Any, error){l.AllowAny, l.AllowAnySplit} {
			if a, _, _ := asked(t, s, ask, 11, one, two); a.Allowed {
				t.Errorf("%+v", a)
			}
			_, _, _ = asked(t, s, ask, 4, one, two)
		}
	}
	for _, p := range []Policy{one, two} {
		if r, err := l.Check(t.Context(), p, "k", 0); err != nil || r.Reason != "" {
			t.Errorf("%+v, %v", r, err)
		}
		r, err := l.AllowN(t.Context(), p, "k", 4)
		if err != nil || r.Allowed || r.Source == SourceCache || r.ResetAfter < time.Hour {
			t.Errorf("an Allow: %+v, %v", r, err)
		}
	}
}

// TestAnyShadow: a shadow pool lets pass what it would deny, counts what it has, and no pool after
// it is asked.
func TestAnyShadow(t *testing.T) {
	t.Parallel()
	l, s := watched(t, false, nil)
	one, shadow, two := hourly("one", 2), hourly("shadow", 5), hourly("two", 5)
	shadow.Shadow = true
	for i, c := range []struct {
		split    bool
		cost     float64
		given    []float64
		shadowed bool
		level    float64
	}{
		{false, 4, []float64{0, 4, 0}, false, 4},
		{false, 3, []float64{0, 3, 0}, true, 4},
		{true, 4, []float64{2, 2, 0}, true, 5},
		{true, 1, []float64{0, 1, 0}, true, 5},
	} {
		ask := l.AllowAny
		if c.split {
			ask = l.AllowAnySplit
		}
		a, given, _ := asked(t, s, ask, c.cost, one, shadow, two)
		r, err := l.Check(t.Context(), shadow, "k", 0)
		if !a.Allowed || !slices.Equal(given, c.given) || a.PerRequest[1].Shadowed != c.shadowed || a.PerRequest[2].Source != SourceSkipped || err != nil || r.Level > c.level || r.Level < c.level-0.1 {
			t.Errorf("%d: %+v, level %v, %v", i, a, r.Level, err)
		}
	}
}

// ruling rules about keys by the policy's name.
type ruling map[string]Ruling

func (r ruling) Snapshot() Overrides { return r }
func (r ruling) Override(p *Policy, _ string, _ func() time.Time) Ruling {
	return r[p.Name]
}

// TestAnyOverrides: an unlimited key gives all that is asked of it, a blocked one nothing, without
// a statement.
func TestAnyOverrides(t *testing.T) {
	t.Parallel()
	l, s := watched(t, false, &Config{Policies: ruling{"free": {Unlimited: true}, "barred": {Blocked: true}}})
	one, free, barred := hourly("one", 5), hourly("free", 5), hourly("barred", 50)
	for i, c := range []struct {
		ask   func(context.Context, ...Request) (Any, error)
		cost  float64
		pools []Policy
		given []float64
		calls []string
	}{
		{l.AllowAny, 50, []Policy{barred, free, one}, []float64{0, 50, 0}, nil},
		{l.AllowAny, 3, []Policy{barred, one, free}, []float64{0, 3, 0}, []string{"take"}},
		{l.AllowAny, 3, []Policy{one, barred}, []float64{0, 0}, []string{"take"}},
		{l.AllowAnySplit, 3, []Policy{barred, one, free}, []float64{0, 2, 1}, []string{"take any"}},
		{l.AllowAnySplit, 3, []Policy{free, one}, []float64{3, 0}, nil},
		{l.AllowAnySplit, 3, []Policy{barred}, []float64{0}, nil},
	} {
		a, given, calls := asked(t, s, c.ask, c.cost, c.pools...)
		if !slices.Equal(given, c.given) || !slices.Equal(calls, c.calls) {
			t.Errorf("%d: %v, %v, %+v", i, given, calls, a)
		}
	}
}

// TestAnyAway: without the database it is an error if a policy is FailClosed, and the store is
// asked once. Else the first pool that fails open, or has room in memory, gives.
func TestAnyAway(t *testing.T) {
	t.Parallel()
	open, local, closed := hourly("open", 10), hourly("local", 10), hourly("closed", 10)
	open.OnError, local.OnError = FailOpen, FailLocal
	shadow := closed
	shadow.Name, shadow.Shadow = "shadow", true
	for i, c := range []struct {
		pools []Policy
		given [][]float64 // of two calls for 1 unit; nil: an error
	}{
		{[]Policy{open, closed}, nil},
		{[]Policy{open, local}, [][]float64{{1, 0}, {1, 0}}},
		{[]Policy{local, open}, [][]float64{{1, 0}, {0, 1}}}, // the part of local is 1
		{[]Policy{local}, [][]float64{{1}, {0}}},
		{[]Policy{shadow, open}, [][]float64{{1, 0}, {1, 0}}},
		{[]Policy{open, shadow}, [][]float64{{1, 0}, {1, 0}}},
	} {
		for n, split := range []bool{false, true} {
			inAway(t, nil, func(a *away) {
				a.leave()
				ask := a.AllowAny
				if split {
					ask = a.AllowAnySplit
				}
				requests := make([]Request, len(c.pools))
				for i, p := range c.pools {
					requests[i] = p.Request("k", 1)
				}
				for call := range 2 {
					a.spy.set(fmt.Errorf("%w: away", ErrUnavailable))
					got, err := ask(a.Context(), requests...)
					var given []float64
					for _, r := range got.PerRequest {
						given = append(given, r.Granted)
					}
					if sent := a.spy.sent(); len(sent) != 1 {
						t.Errorf("%d.%d: %v were sent", i, n, sent)
					}
					switch {
					case c.given == nil:
						if !errors.Is(err, ErrUnavailable) || got.GrantedBy != -1 {
							t.Errorf("%d.%d: %+v, %v", i, n, got, err)
						}
					case err != nil || !slices.Equal(given, c.given[call]):
						t.Errorf("%d.%d: %v, %v, want %v", i, n, given, err, c.given[call])
					}
				}
				a.back()
			})
		}
	}
}

// TestAnyMaxKeys: a pool that has no row for the key gives nothing, and the next one does.
func TestAnyMaxKeys(t *testing.T) {
	t.Parallel()
	l := NewMemory(nil)
	few, many := hourly("few", 5), hourly("many", 50)
	few.MaxKeys = 1
	for i, key := range []string{"a", "b"} {
		for n, ask := range []func(context.Context, ...Request) (Any, error){l.AllowAny, l.AllowAnySplit} {
			a, err := ask(t.Context(), few.Request(key, 2), many.Request(key, 2))
			if err != nil || a.GrantedBy != i || i == 1 && a.PerRequest[0].Reason != ReasonKeys {
				t.Errorf("%s, %d: %+v, %v", key, n, a, err)
			}
		}
	}
	if a, err := l.AllowAnySplit(t.Context(), few.Request("b", 7), many.Request("b", 7)); err != nil || a.PerRequest[0].Reason != ReasonKeys || a.PerRequest[1].Granted != 7 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestAnyObserved: of each pool: denied if it had no room, allowed with what it gave, or skipped.
func TestAnyObserved(t *testing.T) {
	t.Parallel()
	var seen []string
	l, s := watched(t, false, &Config{Observe: func(_ context.Context, o Observation) {
		seen = append(seen, fmt.Sprint(o.Verb, " ", o.Request.Policy.Name, " ", o.Request.Cost, " ", o.Outcome(), " ", o.Units(), " ", o.Rows))
	}})
	one, two, three := hourly("one", 5), hourly("two", 5), hourly("three", 5)
	_, _, _ = asked(t, s, l.AllowAny, 3, one, two, three)
	_, _, _ = asked(t, s, l.AllowAny, 3, one, two, three)
	_, _, _ = asked(t, s, l.AllowAnySplit, 3, one, two, three)
	want := []string{
		"allow_any one 3 allowed 3 1", "allow_any two 3 skipped 3 0", "allow_any three 3 skipped 3 0",
		"allow_any one 3 denied 3 1", "allow_any two 3 allowed 3 1", "allow_any three 3 skipped 3 0",
		"allow_any one 3 allowed 2 1", "allow_any two 1 allowed 1 1", "allow_any three 3 skipped 3 0",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("%q", seen)
	}
}
