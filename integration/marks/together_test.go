package marks

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// ofEach returns a request of cost units for each policy.
func ofEach(policies []limiter.Policy, key string, cost float64) (all []limiter.Request) {
	for _, p := range policies {
		all = append(all, p.Request(key, cost))
	}
	return all
}

// reserveAndSpend brings a key of a limit of 10 to a level of 9, by a Settle, which records nothing.
func reserveAndSpend(t *testing.T, l *limiter.Limiter, requests []limiter.Request) {
	t.Helper()
	for _, in := range requests {
		r := testworld.Reserve(t, l, in.Policy.Request(in.Key, 5), time.Hour)
		testworld.Must(t)(l.Settle(t.Context(), r.ID, 9))
	}
}

// TestMarksOfAllowAll: an AllowAll of several requests records the marks of each key once, over
// each driver and in transactions.
func TestMarksOfAllowAll(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	policies := marked(10)
	plain := limiter.Policy{Name: "plain", Algorithm: limiter.SlidingWindowCounter, Limit: 100, Period: time.Hour}
	for name, open := range testworld.Drivers(t, address) {
		l := open(nil)
		for _, cost := range []float64{7.5, 1, 0.5, 1} {
			testworld.MustAll(t)(l.AllowAll(t.Context(), append(ofEach(policies, name, cost), plain.Request(name, 1))...))
			for _, p := range policies {
				if n := len(events(t, pool, p, name)); (n == 0) != (cost == 7.5) {
					t.Errorf("%s: %d marks after %v units", testworld.Variant(p), n, cost)
				}
			}
		}
		for _, p := range policies {
			expect(t, pool, p, name, most, all)
		}
	}
	for _, w := range testworld.Ways(t, address, false) {
		for _, commit := range []bool{false, true} {
			tx := w.Start(t)
			testworld.MustAll(t)(tx.AllowAll(t.Context(), ofEach(policies, w.Name, 9)...))
			tx.End(t, commit)
			for _, p := range policies {
				if n := len(events(t, pool, p, w.Name)); (n == 1) != commit {
					t.Errorf("%s: %d marks after a transaction that commits: %t", testworld.Variant(p), n, commit)
				}
			}
		}
	}
}

// TestMarksOfDeniedAllowAll: an AllowAll that is denied records what its keys have in use, and not
// what they would have.
func TestMarksOfDeniedAllowAll(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	policies := marked(10)
	full := limiter.Policy{Name: "full", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour, Marks: "50%"}
	for name, open := range testworld.Drivers(t, address) {
		l := open(&limiter.Config{DisableDenyCache: true})
		for _, inside := range []bool{false, true} {
			key := fmt.Sprint(name, inside)
			testworld.Must(t)(l.Allow(t.Context(), full, key))
			testworld.MustAll(t)(l.AllowAll(t.Context(), ofEach(policies, key, 5)...))
			spent := ofEach(policies, key+"spent", 1)
			reserveAndSpend(t, l, spent)
			requests := slices.Concat(ofEach(policies, key, 3), spent, []limiter.Request{full.Request(key, 1)})
			ask := l.AllowAll
			if inside {
				tx := testworld.Begin(t, pool, pgx.TxOptions{})
				defer testworld.Commit(t, tx)
				ask = l.InTx(tx).AllowAll
			}
			if got := testworld.MustAll(t)(ask(t.Context(), requests...)); got.Allowed {
				t.Error("the AllowAll is allowed")
			}
			if inside {
				continue
			}
			for _, p := range policies {
				expect(t, pool, p, key)
				expect(t, pool, p, key+"spent", most)
			}
			if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_event WHERE key = $1 AND level NOT BETWEEN 8.99 AND 9.01`, key+"spent"); n > 0 {
				t.Errorf("%s: %d marks are of another level than 9", name, n)
			}
		}
	}
}

// TestMarksOfConcurrentAllowAlls: many callers use up several keys, each by AllowAlls in an order of
// its own, in transactions and outside, over each driver. None fails, and each mark is recorded once.
func TestMarksOfConcurrentAllowAlls(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var policies []limiter.Policy
	for _, p := range marked(40) {
		p.Marks = "25%,50%,75%,100%"
		policies = append(policies, p)
	}
	pgxAlone := testworld.NewLimiter(t, testworld.Connect(t, address), &limiter.Config{DisableTimeout: true})
	ways := testworld.Ways(t, address, false)
	together(20, func(i int) {
		for range 10 {
			requests := slices.Concat(ofEach(policies, "a", 1), ofEach(policies, "b", 1))
			rand.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
			requests = requests[:4+rand.IntN(len(requests)-4)]
			if i%2 == 0 {
				if _, err := pgxAlone.AllowAll(t.Context(), requests...); err != nil {
					t.Errorf("outside: %v", err)
				}
				continue
			}
			tx, err := ways[i/2%len(ways)].Begin(t.Context())
			if err == nil {
				_, err = tx.AllowAll(t.Context(), requests...)
				err = cmp.Or(err, tx.Close(context.Background(), err == nil && rand.IntN(4) > 0))
			}
			if err != nil {
				t.Errorf("inside: %v", err)
			}
		}
	})
	for _, p := range policies {
		for _, key := range []string{"a", "b"} {
			for range 40 { // what is left
				testworld.Must(t)(pgxAlone.Allow(t.Context(), p, key))
			}
			expect(t, pool, p, key, 250_000, 500_000, 750_000, all)
		}
	}
}

// lockOrder is the order of a row's key among all, as SQL.
const lockOrder = `array_position(ARRAY['leaky_bucket', 'token_bucket', 'fixed_window', 'sliding_window_counter', 'sliding_window_log'], algorithm), policy, key`

// TestMarksAreRecordedInOneOrder: an AllowAll inserts its events in the order of locks, whatever
// the order of its requests. So do one that is denied, and an AllowAny that asks all pools.
func TestMarksAreRecordedInOneOrder(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	policies := marked(10)
	full := limiter.Policy{Name: "full", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour}
	testworld.Must(t)(l.Allow(t.Context(), full, "k"))
	for what, ask := range map[string]func(key string) error{
		"granted": func(key string) error {
			requests := slices.Concat(ofEach(policies, key, 9), ofEach(policies, key+"0", 9))
			rand.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
			_, err := l.AllowAll(t.Context(), requests...)
			return err
		},
		"denied": func(key string) error {
			requests := ofEach(policies, key, 1)
			reserveAndSpend(t, l, requests)
			slices.Reverse(requests)
			_, err := l.AllowAll(t.Context(), append(requests, full.Request("k", 1))...)
			return err
		},
		"any": func(key string) error {
			requests := ofEach(policies, key, float64(10*len(policies))) // each gives all that it has
			slices.Reverse(requests)
			_, err := l.AllowAnySplit(t.Context(), requests...)
			return err
		},
	} {
		if err := ask(what); err != nil {
			t.Error(what, err)
		}
		orders := testworld.Value[[]string](t, pool, `SELECT ARRAY[coalesce(string_agg(policy || key, ' ' ORDER BY ctid), ''), coalesce(string_agg(policy || key, ' ' ORDER BY `+lockOrder+`, mark), '')]
			FROM pglimit_event WHERE starts_with(key, $1)`, what)
		if orders[0] != orders[1] || orders[0] == "" {
			t.Errorf("%s: events were inserted in the order %q, not %q", what, orders[0], orders[1])
		}
	}
}

// TestMarksAfterAllLocks: an AllowAll and an AllowAnySplit that wait for the row of one key have
// recorded no mark of another.
func TestMarksAfterAllLocks(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p, q := marked(10)[0], marked(10)[len(marked(10))-1] // of two algorithms: one statement locks several keys of one
	for what, ask := range map[string]func(*limiter.Tx, context.Context, ...limiter.Request) (bool, error){
		"all": func(tx *limiter.Tx, ctx context.Context, requests ...limiter.Request) (bool, error) {
			got, err := tx.AllowAll(ctx, requests...)
			return got.Allowed, err
		},
		"any": func(tx *limiter.Tx, ctx context.Context, requests ...limiter.Request) (bool, error) {
			got, err := tx.AllowAnySplit(ctx, requests...)
			return got.Allowed, err
		},
	} {
		first, last := p.Request(what+"1", 1), q.Request(what+"2", 1)
		if what == "any" {
			last.Cost, first.Cost = 2, 2 // one unit of each
		}
		reserveAndSpend(t, l, []limiter.Request{first})
		holds, waits, looks := testworld.Begin(t, pool, pgx.TxOptions{}), testworld.Begin(t, pool, pgx.TxOptions{}), testworld.Begin(t, pool, pgx.TxOptions{})
		testworld.Must(t)(l.InTx(holds).AllowN(t.Context(), q, last.Key, 0.5))
		answer := make(chan error, 1)
		go func() { _, err := ask(l.InTx(waits), t.Context(), first, last); answer <- err }()
		testworld.AwaitBlocked(t, pool)
		// It would wait for a mark that is recorded and not committed.
		must.OK(looks.Exec(t.Context(), `SET LOCAL lock_timeout = '5s'`))(t)
		for _, mark := range []int{most, all} {
			if _, err := looks.Exec(t.Context(), `INSERT INTO pglimit_event (mark, window_ends_at_us, at_us, level, limit_units, due_at_us, policy, key, algorithm)
				SELECT $1, (t.updated_at_us / $2::bigint + 1) * $2::bigint, 0, 0, 0, 0, $3, $4, $5 FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS updated_at_us) AS t`,
				mark, p.Period.Microseconds(), p.Name, first.Key, string(p.Algorithm)); err != nil {
				t.Errorf("%s: mark %d: %v", what, mark, err)
				break
			}
		}
		must.Succeed(t, looks.Rollback(t.Context()))
		testworld.Commit(t, holds)
		if err := testworld.Receive(t, answer, "the answer"); err != nil {
			t.Error(what, err)
		}
		testworld.Commit(t, waits)
	}
}

// TestMarksOfAllowAny: the pool that gives records its marks, one that is asked and gives nothing
// those that it has in use, and one that is not asked none.
func TestMarksOfAllowAny(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	type method = func(context.Context, ...limiter.Request) (limiter.Any, error)
	check := func(what string, p limiter.Policy, any, split method, l *limiter.Limiter, in func(func())) {
		p1, p2, p3 := p, p, p
		p1.Name, p2.Name, p3.Name = p.Name+"-1", p.Name+"-2", p.Name+"-3"
		pools := func(key string, cost float64) []limiter.Request {
			return ofEach([]limiter.Policy{p1, p2, p3}, key, cost)
		}
		give := func(ask method, want bool, pools []limiter.Request) {
			in(func() {
				if got, err := ask(t.Context(), pools...); err != nil || got.Allowed != want {
					t.Errorf("%s, %s: %+v, %v", what, testworld.Variant(p), got, err)
				}
			})
		}
		for name, ask := range map[string]method{"any": any, "split": split} {
			key := what + name
			reserveAndSpend(t, l, []limiter.Request{p1.Request(key, 1), p3.Request(key, 1)})
			give(ask, true, pools(key, 8)) // of a split, 1 and 7
			if name == "any" {
				expect(t, pool, p1, key, most)
				expect(t, pool, p2, key, most)
			} else {
				expect(t, pool, p1, key, most, all)
				expect(t, pool, p2, key)
			}
			expect(t, pool, p3, key) // it was not asked
			key += "denied"
			reserveAndSpend(t, l, pools(key, 1))
			give(ask, false, pools(key, 4))
			for _, p := range []limiter.Policy{p1, p2, p3} {
				expect(t, pool, p, key, most)
			}
		}
	}
	for name, open := range testworld.Drivers(t, address) {
		l := open(&limiter.Config{DisableDenyCache: true})
		for _, p := range marked(10) {
			check(name, p, l.AllowAny, l.AllowAnySplit, l, func(f func()) { f() })
		}
	}
	for _, w := range testworld.Ways(t, address, false) {
		for _, p := range marked(10) {
			var tx *testworld.Transaction
			check(w.Name, p,
				func(ctx context.Context, r ...limiter.Request) (limiter.Any, error) { return tx.AllowAny(ctx, r...) },
				func(ctx context.Context, r ...limiter.Request) (limiter.Any, error) {
					return tx.AllowAnySplit(ctx, r...)
				},
				w.L, func(f func()) { tx = w.Start(t); f(); tx.End(t, true) })
		}
	}
}
