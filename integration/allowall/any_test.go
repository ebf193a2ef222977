package allowall

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAnyDecidesAsMemory: AllowAny and AllowAnySplit decide as a limiter in memory, over
// pgx and database/sql, and in the caller's transaction, committed or rolled back.
func TestAllowAnyDecidesAsMemory(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	dbs := []*sql.DB{testworld.ConnectSQL(t, testworld.SQLDrivers[0], address), testworld.ConnectSQL(t, testworld.SQLDrivers[1], address)}
	outside := search.Draw{Equal: true, Names: 4, Operations: strings.Repeat("any split ", 10) + "once reserve allow charge block unblock reset undo undo override"}
	inside := outside
	inside.Plain, inside.Operations = true, outside.Operations+" any any split split begin begin commit rollback"
	for mode, d := range map[string]search.Draw{"outside": outside, "inside": inside} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testworld.Search(t, d, 12, func(t *testing.T) func(*search.History) search.Subject {
				return func(*search.History) search.Subject {
					s, config := testworld.NewSubject(t)
					s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config), testworld.NewSQL(t, dbs[0], config), testworld.NewSQL(t, dbs[1], config)), pool.Begin
					if d.Plain { // in a transaction all rows are brought up to date
						s.Alike = search.Rounded
					}
					return s
				}
			}, testworld.Holdable()...)
		})
	}
}

// anyCallers are callers of AllowAny, and what their pools gave.
type anyCallers struct {
	pool    *pgxpool.Pool
	l       *limiter.Limiter
	pools   []limiter.Policy
	mu      sync.Mutex
	granted map[string]float64 // by policy
	denied  int
}

// byFunction asks the pools by allow_any.
func (c *anyCallers) byFunction(ctx context.Context, requests []limiter.Request) (a limiter.Any, err error) {
	var names, keys []string
	for _, in := range requests {
		names, keys = append(names, in.Policy.Name), append(keys, in.Key)
	}
	var given []float64
	err = c.pool.QueryRow(ctx, `SELECT allowed, ARRAY(SELECT r.granted FROM unnest(requests) WITH ORDINALITY AS r (allowed, granted, remaining, level, retry, reset, delay, reason, shadowed, n) ORDER BY r.n)
		FROM pglimit.allow_any($1, $2, $3, split => $4)`, names, keys, requests[0].Cost, rand.IntN(2) == 0).Scan(&a.Allowed, &given)
	for _, units := range given {
		a.PerRequest = append(a.PerRequest, limiter.Result{Granted: units})
	}
	return a, err
}

// act asks the pools in random order, by either method or the function, also in transactions, of
// which some are rolled back.
func (c *anyCallers) act(ctx context.Context) error {
	cost := float64(1 + rand.IntN(3))
	var requests []limiter.Request
	for _, i := range rand.Perm(len(c.pools)) {
		requests = append(requests, c.pools[i].Request("k", cost))
	}
	ask := func(d interface {
		AllowAny(context.Context, ...limiter.Request) (limiter.Any, error)
		AllowAnySplit(context.Context, ...limiter.Request) (limiter.Any, error)
	}) (limiter.Any, error) {
		if rand.IntN(2) == 0 {
			return d.AllowAny(ctx, requests...)
		}
		return d.AllowAnySplit(ctx, requests...)
	}
	var a limiter.Any
	var err error
	switch rand.IntN(4) {
	case 0, 1:
		a, err = ask(c.l)
	case 2:
		a, err = c.byFunction(ctx, requests)
	default:
		err = pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) (err error) {
			if a, err = ask(c.l.InTx(tx)); err == nil && rand.IntN(2) == 0 {
				err = errUndo
			}
			return err
		})
		if errors.Is(err, errUndo) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	sum := 0.0
	for _, r := range a.PerRequest {
		sum += r.Granted
	}
	if a.Allowed != (sum == cost) || sum != 0 && !a.Allowed {
		return fmt.Errorf("%v of %v units: %+v", sum, cost, a)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range a.PerRequest {
		c.granted[requests[i].Policy.Name] += r.Granted
	}
	if !a.Allowed {
		c.denied++
	}
	return nil
}

// TestAllowAnyConcurrently: many callers at once, over two pools in opposite orders, by both
// methods, the function and in transactions, use up exactly what the pools have, and no pool gives more. No one
// meets a deadlock.
func TestAllowAnyConcurrently(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	url := pool.Config().ConnString()
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true})
	bases := testworld.Variants(60, 100_000*time.Hour)
	var wg sync.WaitGroup
	var all []*anyCallers
	for i, one := range bases {
		two := bases[(i+1)%len(bases)]
		if one.Algorithm == limiter.LeakyBucketQueue || two.Algorithm == limiter.LeakyBucketQueue {
			continue
		}
		one.Name, two.Name = fmt.Sprint("one-", i), fmt.Sprint("two-", i)
		two.Limit = 31
		for _, p := range []limiter.Policy{one, two} {
			testworld.StorePolicy(t, pool, p, false)
		}
		c := &anyCallers{pool: pool, l: l, pools: []limiter.Policy{one, two}, granted: map[string]float64{}}
		all = append(all, c)
		for range 8 {
			wg.Go(func() {
				for range 24 {
					if err := c.act(t.Context()); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	wg.Wait()
	for _, c := range all {
		for range 200 { // what is left
			if a := must.OK(l.AllowAnySplit(t.Context(), c.pools[0].Request("k", 1), c.pools[1].Request("k", 1)))(t); !a.Allowed {
				break
			} else {
				c.granted[c.pools[a.GrantedBy].Name]++
			}
		}
		for _, p := range c.pools {
			r := testworld.Must(t)(l.Check(t.Context(), p, "k", 0))
			if c.granted[p.Name] != p.Limit || !testworld.Near(r.Level, p.Limit) {
				t.Errorf("%s: %v of %v units were granted, level %v", testworld.Variant(p), c.granted[p.Name], p.Limit, r.Level)
			}
		}
		if c.denied == 0 {
			t.Error("nothing was denied")
		}
	}
	pool.Close() // sessions report their counters when they end
	noDeadlock(t, testworld.Connect(t, url))
}

// TestAllowAnyRoundTrips: one while the first pool has room, or the denials of those before the
// one that gives are remembered; else one for each pool. A split takes one if the first has room.
// A pool after the one that gives is not asked: it has no row.
func TestAllowAnyRoundTrips(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var trips atomic.Int64
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.OneConnection, countTrips(&trips))
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenyCacheTTL: time.Hour})
	named := func(name string, limit float64) limiter.Policy {
		return limiter.Policy{Name: name, Algorithm: limiter.GCRA, Limit: limit, Period: 1000 * time.Hour}
	}
	first, second, third := named("first", 4), named("second", 100), named("third", 100)
	ask := func(key string, cost float64) []limiter.Request {
		return []limiter.Request{first.Request(key, cost), second.Request(key, cost), third.Request(key, cost)}
	}
	for range 3 { // statements are prepared, and expired reservations looked up
		testworld.Must(t)(l.AllowN(ctx, first, "warm", 4))
		_, err := l.AllowAny(ctx, ask("warm", 1)...)
		if err == nil {
			_, err = l.AllowAnySplit(ctx, ask(fmt.Sprint("warm", rand.Int()), 6)...)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rows := func() int {
		return testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_token_bucket WHERE policy = 'third' AND key = 'k'")
	}
	for _, c := range []struct {
		what  string
		split bool
		cost  float64
		by    int
		trips int64
	}{
		{"the first has room", false, 3, 0, 1},
		{"the first has none", false, 3, 1, 2},
		{"its denial is remembered", false, 3, 1, 1},
		{"and not that of less", false, 1, 0, 1},
	} {
		trips.Store(0)
		a := must.OK(l.AllowAny(ctx, ask("k", c.cost)...))(t)
		if n := trips.Load(); n > c.trips && n != c.trips+1 || n < c.trips || a.GrantedBy != c.by { // one more if the watch for expired reservations looks
			t.Errorf("%s: %d round trips, %+v; want %d", c.what, n, a, c.trips)
		}
	}
	if n := rows(); n != 0 {
		t.Errorf("the third pool has %d rows", n)
	}
	trips.Store(0)
	if a := must.OK(l.AllowAnySplit(ctx, ask("s", 3)...))(t); trips.Load() != 1 || a.GrantedBy != 0 {
		t.Errorf("a split whose first pool has room: %d round trips, %+v", trips.Load(), a)
	}
	trips.Store(0)
	if a := must.OK(l.AllowAnySplit(ctx, ask("s", 3)...))(t); trips.Load() > 4 || a.PerRequest[0].Granted != 1 || a.PerRequest[1].Granted != 2 {
		t.Errorf("a split: %d round trips, %+v", trips.Load(), a)
	}
	t.Logf("a split over two pools: %d round trips", trips.Load())
}

// TestAllowAnyMaxKeys: a pool whose policy has rows for all of its keys gives nothing to another
// one, in any way, and the next pool does.
func TestAllowAnyMaxKeys(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.FunctionsPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	few, many := limiter.PerHour("few", 10), limiter.PerHour("many", 100)
	few.MaxKeys = 1
	for _, p := range []limiter.Policy{few, many} {
		testworld.StorePolicy(t, pool, p, false)
	}
	for i, key := range []string{"a", "b"} {
		requests := []limiter.Request{few.Request(key, 2), many.Request(key, 2)}
		for way, ask := range map[string]func(context.Context, ...limiter.Request) (limiter.Any, error){"": l.AllowAny, "split": l.AllowAnySplit} {
			a, err := ask(ctx, requests...)
			if err != nil || a.GrantedBy != i || i == 1 && a.PerRequest[0].Reason != limiter.ReasonKeys {
				t.Errorf("%s %s: %+v, %v", key, way, a, err)
			}
			tx := testworld.Begin(t, pool, pgx.TxOptions{})
			a, err = map[string]func(context.Context, ...limiter.Request) (limiter.Any, error){"": l.InTx(tx).AllowAny, "split": l.InTx(tx).AllowAnySplit}[way](ctx, requests...)
			if err != nil || a.GrantedBy != i || i == 1 && a.PerRequest[0].Reason != limiter.ReasonKeys {
				t.Errorf("%s %s in a transaction: %+v, %v", key, way, a, err)
			}
			testworld.Commit(t, tx)
			if by := testworld.Value[int](t, pool, "SELECT granted_by FROM pglimit.allow_any(ARRAY['few', 'many'], ARRAY[$1, $1]::text[], 1, split => $2)", key, way != ""); by != i+1 {
				t.Errorf("%s %s by the function: %d", key, way, by)
			}
		}
	}
	if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_token_bucket WHERE policy = 'few'"); n != 1 {
		t.Errorf("%d rows, of 1", n)
	}
}
