package limiter_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// window returns a policy of limit units an hour.
func window(name string, limit float64) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: limiter.FixedWindow, Limit: limit, Period: time.Hour}
}

// gave returns what each pool gave.
func gave(a limiter.Any) (units []float64) {
	for _, r := range a.PerRequest {
		units = append(units, r.Granted)
	}
	return units
}

// TestAnyPoolsInOrder: the first pool with room for the whole gives it, the others are untouched.
// A split takes what fits from each, or nothing.
func TestAnyPoolsInOrder(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pools := func(cost float64) []limiter.Request {
		return []limiter.Request{window("weekly", 10).Request("a", cost), window("credits", 5).Request("a", cost), window("overdraft", 3).Request("a", cost)}
	}
	for _, c := range []struct {
		name  string
		split bool
		costs []float64
		want  [][]float64
		by    []int
	}{
		{"whole", false, []float64{8, 4, 3, 2, 1, 1}, [][]float64{{8, 0, 0}, {0, 4, 0}, {0, 0, 3}, {2, 0, 0}, {0, 1, 0}, {0, 0, 0}}, []int{0, 1, 2, 0, 1, -1}},
		{"split", true, []float64{8, 4, 6, 5, 1}, [][]float64{{8, 0, 0}, {2, 2, 0}, {0, 3, 3}, {0, 0, 0}, {0, 0, 0}}, []int{0, 0, 1, -1, -1}},
		{"more than all", true, []float64{19, 18, 1}, [][]float64{{0, 0, 0}, {10, 5, 3}, {0, 0, 0}}, []int{-1, 0, -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			clock := new(conformance.Clock)
			l := limiter.NewMemory(&limiter.Config{Now: clock.Now})
			ask := l.AllowAny
			if c.split {
				ask = l.AllowAnySplit
			}
			for i, cost := range c.costs {
				a := must.OK(ask(ctx, pools(cost)...))(t)
				if got := gave(a); !slices.Equal(got, c.want[i]) || a.GrantedBy != c.by[i] || a.Allowed != (c.by[i] >= 0) {
					t.Errorf("%v: %v gave, %+v, want %v by %d", cost, got, a, c.want[i], c.by[i])
				}
			}
			used := 0.0
			for _, in := range pools(1) {
				used += must.OK(l.Check(ctx, in.Policy, in.Key, 0))(t).Level
			}
			sum := 0.0
			for i := range c.costs {
				for _, units := range c.want[i] {
					sum += units
				}
			}
			if used != sum {
				t.Errorf("%v units are in use, want %v", used, sum)
			}
		})
	}
}

// TestAnyRetryAfter: the least of the pools', limiter.Never only if none can ever, and a split is allowed
// at its RetryAfter, however its pools fill up.
func TestAnyRetryAfter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, a := range limiter.Algorithms() {
		if a == limiter.LeakyBucketQueue {
			continue
		}
		slow := limiter.Policy{Name: "slow", Algorithm: a, Limit: 10, Period: time.Hour}
		fast := limiter.Policy{Name: "fast", Algorithm: a, Limit: 6, Period: time.Minute}
		for _, c := range []struct {
			split bool
			cost  float64
			never bool
		}{{true, 4, false}, {true, 12, false}, {true, 16, false}, {true, 17, true}, {false, 6, false}, {false, 10, false}, {false, 11, true}} {
			clock := new(conformance.Clock)
			l := limiter.NewMemory(&limiter.Config{Now: clock.Now})
			must.OK(l.AllowN(ctx, slow, "k", 7))(t)
			must.OK(l.AllowN(ctx, fast, "k", 6))(t)
			ask := func() limiter.Any {
				pools := []limiter.Request{slow.Request("k", c.cost), fast.Request("k", c.cost)}
				if c.split {
					return must.OK(l.AllowAnySplit(ctx, pools...))(t)
				}
				return must.OK(l.AllowAny(ctx, pools...))(t)
			}
			denied := ask()
			if denied.Allowed || (denied.RetryAfter == limiter.Never) != c.never || denied.GrantedBy != -1 || denied.Err().(*limiter.DeniedError).Result.RetryAfter != denied.RetryAfter ||
				!c.split && denied.RetryAfter != min(denied.PerRequest[0].RetryAfter, denied.PerRequest[1].RetryAfter) {
				t.Errorf("%s, %+v: %+v", a, c, denied)
			}
			if clock.Set(denied.RetryAfter.Microseconds()); c.never {
				continue
			}
			if again := ask(); !again.Allowed {
				t.Errorf("%s, %+v after %v: %+v", a, c, denied.RetryAfter, again)
			}
		}
	}
}

// TestAnyRefuses: what is not valid is named, and nothing is written.
func TestAnyRefuses(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	a, b := window("a", 10), window("b", 10)
	queue := limiter.Policy{Name: "q", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Second}
	login := limiter.Policy{Name: "login", Algorithm: limiter.Attempts, Limit: 1, Period: time.Minute, BlockFor: time.Minute}
	once := a.Request("k", 1)
	once.IdempotencyKey = "x"
	many := make([]limiter.Request, 11)
	for i := range many {
		many[i] = window(strings.Repeat("m", i+1), 1).Request("k", 1)
	}
	for _, c := range []struct {
		requests []limiter.Request
		want     error
		text     string
	}{
		{nil, limiter.ErrInvalid, "requests 0: must be from 1 to 10"},
		{many, limiter.ErrInvalid, "requests 11: must be from 1 to 10"},
		{[]limiter.Request{a.Request("k", 2), b.Request("k", 3)}, limiter.ErrInvalid, "requests[1].Cost 3: must be that of requests[0], 2"},
		{[]limiter.Request{a.Request("k", 2), b.Request("k", 2), a.Request("k", 2)}, limiter.ErrInvalid, `requests[0] and requests[2] are for the same policy "a" and key`},
		{[]limiter.Request{a.Request("k", 1), queue.Request("k", 1)}, limiter.ErrUnsupported, "requests[1]: pglimit: unsupported: AllowAny on leaky_bucket_queue"},
		{[]limiter.Request{a.Request("k", 1), login.Request("k", 1)}, limiter.ErrUnsupported, "requests[1]"},
		{[]limiter.Request{b.Request("k", 1), once}, limiter.ErrInvalid, `requests[1].IdempotencyKey "x": must be that of requests[0], ""`},
		{[]limiter.Request{a.Request("", 1)}, limiter.ErrInvalid, "requests[0]"},
	} {
		for _, ask := range []func(context.Context, ...limiter.Request) (limiter.Any, error){l.AllowAny, l.AllowAnySplit} {
			if got, err := ask(t.Context(), c.requests...); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || got.GrantedBy != -1 || got.Allowed {
				t.Errorf("%v: %+v, %v, want %q", c.requests, got, err, c.text)
			}
		}
	}
	if r := must.OK(l.Check(t.Context(), a, "k", 0))(t); r.Level != 0 {
		t.Errorf("%+v", r)
	}
}

// TestAnyConcurrently: many callers over two pools, of both kinds, get exactly what the pools
// have, and each the whole or nothing.
func TestAnyConcurrently(t *testing.T) {
	t.Parallel()
	for _, a := range limiter.Algorithms() {
		if a == limiter.LeakyBucketQueue {
			continue
		}
		l := limiter.NewMemory(nil)
		one, two := limiter.Policy{Name: "one", Algorithm: a, Limit: 100, Period: 100_000 * time.Hour}, limiter.Policy{Name: "two", Algorithm: a, Limit: 53, Period: 100_000 * time.Hour}
		var mu sync.Mutex
		var sum float64
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range 100 {
					pools := []limiter.Request{one.Request("k", float64(1+rand.IntN(3))), two.Request("k", 0)}
					if pools[1].Cost = pools[0].Cost; rand.IntN(2) == 0 {
						pools[0], pools[1] = pools[1], pools[0]
					}
					ask := l.AllowAny
					if rand.IntN(2) == 0 {
						ask = l.AllowAnySplit
					}
					got, err := ask(context.Background(), pools...)
					if err != nil {
						t.Error(err)
						return
					}
					total := 0.0
					for _, units := range gave(got) {
						total += units
					}
					if got.Allowed != (total == pools[0].Cost) || total != 0 && !got.Allowed {
						t.Errorf("%v of %v units: %+v", total, pools[0].Cost, got)
					}
					mu.Lock()
					sum += total
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if sum != 153 {
			t.Errorf("%s: %v units were granted, want 153", a, sum)
		}
	}
}
