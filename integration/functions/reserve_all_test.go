package functions

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// holdable stores policies of all algorithms that have reservations, and returns their names, and a key
// for each.
func holdable(t *testing.T, pool *pgxpool.Pool) (policies []limiter.Policy, names, keys []string) {
	for _, p := range testworld.Holdable() {
		p.Name, p.Limit, p.Burst, p.Period, p.Tick = testworld.Variant(p), 1e4, 0, 800_000*time.Hour, 0
		p.Name = "p" + fmt.Sprint(len(policies))
		testworld.StorePolicy(t, pool, p, false)
		policies, names, keys = append(policies, p), append(names, p.Name), append(keys, "k")
	}
	return policies, names, keys
}

// TestFunctionsReserveAllLeavesNothing: where one key has no room, reserve_all reserves nothing; and
// where one reservation has ended, settle_all and cancel_all end none.
func TestFunctionsReserveAllLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := testworld.FunctionsPool(t)
	policies, names, keys := holdable(t, pool)
	left := func(what, want string) {
		t.Helper()
		got := testworld.Value[string](t, pool, `SELECT format('%s open, %s units', (SELECT count(*) FROM pglimit_reservation WHERE state = 'open'),
			(SELECT round(sum((pglimit.usage(n, 'k')).reserved)) FROM unnest($1::text[]) AS n))`, names)
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	const reserve = `SELECT coalesce(reservations, '{}') FROM pglimit.reserve_all($1::text[], $2, array_fill(2::float8, ARRAY[cardinality($1::text[])]), 60)`
	for _, full := range policies {
		testworld.Exec(t, pool, `SELECT pglimit.charge($1, 'k', 10000)`, full.Name)
		if ids := testworld.Value[[]string](t, pool, reserve, names, keys); len(ids) > 0 {
			t.Errorf("%s is full: %v", full.Name, ids)
		}
		left(full.Name, "0 open, 0 units")
		testworld.Exec(t, pool, `SELECT pglimit.reset($1, 'k')`, full.Name)
	}
	ids := testworld.Value[[]string](t, pool, reserve, names, keys)
	n := len(ids)
	if n != len(names) {
		t.Fatalf("%v", ids)
	}
	testworld.Exec(t, pool, `SELECT pglimit.settle($1, 1)`, ids[0])
	rest := fmt.Sprintf("%d open, %d units", n-1, 2*(n-1))
	unknown := strings.TrimSuffix(ids[1], "aw") + "eHh4" // another key
	for call, code := range map[string]string{
		`pglimit.settle_all($1, '{2}')`:                         "55000",
		`pglimit.cancel_all($1)`:                                "55000",
		`pglimit.settle_all($1[2:] || $1[2], '{1}')`:            "22023",
		`pglimit.settle_all($1, '{1,2}')`:                       "22023",
		`pglimit.settle_all($1, '{-1}')`:                        "22023",
		`pglimit.settle_all('{}', '{1}')`:                       "22023",
		`pglimit.cancel_all(NULL)`:                              "22023",
		`pglimit.cancel_all($1[2:] || '` + unknown + `'::text)`: "P0002",
		`pglimit.reserve_all('{p0}', '{k}', ttl_s => 0)`:        "22023",
	} {
		args := []any{ids}
		if !strings.Contains(call, "$1") {
			args = nil
		}
		_, err := pool.Exec(t.Context(), `SELECT `+strings.Replace(call, "$1", "($1::text[])", -1), args...)
		if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != code || pg.Hint == "" {
			t.Errorf("%s: %v, want %s", call, err, code)
		}
		left(call, rest)
	}
	testworld.Exec(t, pool, `SELECT pglimit.cancel_all($1)`, ids[1:])
	left("cancelled", "0 open, 0 units")
}

// onceSQL returns a call of verb for 9,000 units of each key, or of the pools, under the idempotency key $3.
func onceSQL(verb string) string {
	more := map[string]string{"reserve_all": ", ttl_s => 60", "allow_any": ", split => true"}[verb]
	costs := `array_fill(9000::float8, ARRAY[cardinality($1::text[])])`
	if verb == "allow_any" {
		costs = "9000"
	}
	return `SELECT allowed, replayed FROM pglimit.` + verb + `($1::text[], $2, ` + costs + more + `, idempotency_key => $3)`
}

// TestFunctionsOnceCountsOnce: of calls of several keys under one idempotency key at once, by the
// functions and the library, in transactions of each isolation, one counts.
func TestFunctionsOnceCountsOnce(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.FunctionsPool(t)
	policies, names, keys := holdable(t, pool)
	l := testworld.NewLimiter(t, pool, nil)
	for _, verb := range []string{"allow_all", "reserve_all", "allow_any"} {
		for _, iso := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
			once, sql := verb+string(iso), onceSQL(verb)
			var requests []limiter.Request
			for _, p := range policies {
				in := p.Request("k", 9000)
				in.IdempotencyKey = once
				requests = append(requests, in)
			}
			fresh := 0
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					replayed, err := false, errors.New("not yet")
					for err != nil {
						if i%3 == 2 && verb == "allow_all" {
							var all limiter.Results
							if all, err = l.AllowAll(ctx, requests...); err == nil {
								replayed = all.PerRequest[0].Replayed
							}
						} else {
							err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: iso}, func(tx pgx.Tx) error {
								allowed := false
								err := tx.QueryRow(ctx, sql, names, keys, once).Scan(&allowed, &replayed)
								if err == nil && !allowed {
									t.Errorf("%s: denied", once)
								}
								return err
							})
						}
						if pg := (*pgconn.PgError)(nil); err != nil && (!errors.As(err, &pg) || pg.Code != "40001") {
							t.Errorf("%s: %v", once, err)
							return
						}
					}
					mu.Lock()
					defer mu.Unlock()
					if !replayed {
						fresh++
					}
				})
			}
			wg.Wait()
			if fresh != 1 {
				t.Errorf("%s: %d calls counted, want 1", once, fresh)
			}
			for _, p := range policies {
				testworld.Exec(t, pool, `SELECT pglimit.reset($1, 'k')`, p.Name)
			}
		}
	}
}

// TestFunctionsSettleAllNeverDeadlocks: callers of settle_all and cancel_all in random orders, beside
// the library's, meet no deadlock.
func TestFunctionsSettleAllNeverDeadlocks(t *testing.T) {
	t.Parallel()
	ctx, pool := t.Context(), testworld.FunctionsPool(t)
	policies, names, keys := holdable(t, pool)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableTimeout: true})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 15 {
				order := rand.Perm(len(names))
				shuffled := make([]string, len(names))
				for i, n := range order {
					shuffled[i] = names[n]
				}
				var ids []string
				err := pool.QueryRow(ctx, `SELECT reservations FROM pglimit.reserve_all($1, $2, ttl_s => 60)`, shuffled, keys).Scan(&ids)
				rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
				switch {
				case err != nil:
				case i%3 == 0:
					_, err = l.SettleAll(ctx, ids, 1)
				case i%3 == 1:
					_, err = pool.Exec(ctx, `SELECT pglimit.settle_all($1, '{1}')`, ids)
				default:
					_, err = pool.Exec(ctx, `SELECT pglimit.cancel_all($1)`, ids)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, p := range policies {
		if u, err := l.Usage(ctx, p, "k"); err != nil || u.Reservations != 0 || u.Spent > 90.1 || u.Spent < 89 {
			t.Errorf("%s: %+v, %v, want 6 callers' 15 units", p.Name, u, err)
		}
	}
}
