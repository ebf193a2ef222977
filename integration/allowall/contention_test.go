package allowall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAllNeverDeadlocks: 64 goroutines use 10 keys of every algorithm in random
// order, mixed with single requests that share statements and with transactions. The
// database sees no deadlock, no caller gets an error, and each key ends with exactly what
// was granted and committed.
func TestAllowAllNeverDeadlocks(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string][]byte{"plain": nil, "secret": []byte("a secret for the keys")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testworld.NewDatabase(t)
			c := &allCallers{policies: testworld.Variants(60, 100_000*time.Hour), granted: map[limiter.Request]float64{}}
			var wg sync.WaitGroup
			guessed := newGuesses()
			var pools []*pgxpool.Pool
			for range 2 {
				pool := testworld.Connect(t, url, guessed.On)
				pools = append(pools, pool)
				l := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret, DisableTimeout: true}) // on a busy machine rows are locked for long
				for range 32 {
					wg.Go(func() {
						for range 40 {
							if err := c.act(t.Context(), pool, l); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			wg.Wait()
			l := testworld.NewLimiter(t, pools[0], &limiter.Config{KeySecret: secret})
			denied := 0
			for request, want := range c.granted {
				r := testworld.Must(t)(l.Check(t.Context(), request.Policy, request.Key, 0))
				if !testworld.Near(r.Level, want) {
					t.Errorf("%s %s: level %v, granted %v", testworld.Variant(request.Policy), request.Key, r.Level, want)
				}
				if want > 57 {
					denied++
				}
			}
			if denied == 0 {
				t.Error("no key was used up, so nothing was denied")
			}
			if guessed.right.Load() == 0 && !testworld.Citus() { // there keys of several shards never are
				t.Error("nothing was taken in one round trip")
			}
			for _, pool := range pools {
				pool.Close() // sessions report their counters when they end
			}
			noDeadlock(t, testworld.Connect(t, url))
		})
	}
}

// noDeadlock reads the database's count once all other sessions have ended.
func noDeadlock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	testworld.Eventually(t, "the sessions have ended", func(ctx context.Context) (ended bool, err error) {
		err = pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
			AND application_name NOT LIKE 'citus%')`).Scan(&ended)
		return ended, err
	})
	if n := testworld.Value[int](t, pool, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// allCallers is the callers, and the units that they were granted.
type allCallers struct {
	policies []limiter.Policy
	mu       sync.Mutex
	granted  map[limiter.Request]float64 // by policy and key
}

// act does one random thing.
func (c *allCallers) act(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter) error {
	requests := make([]limiter.Request, 1+rand.IntN(5))
	for i := range requests {
		requests[i] = c.policies[rand.IntN(len(c.policies))].Request(fmt.Sprint("key", rand.IntN(10)), float64(1+rand.IntN(3)))
	}
	switch rand.IntN(3) {
	case 0:
		r, err := l.Do(ctx, requests[0])
		if r.Allowed {
			c.count(requests[:1])
		}
		return err
	case 1:
		all, err := l.AllowAll(ctx, requests...)
		if all.Allowed {
			c.count(requests)
		}
		return err
	}
	return c.inside(ctx, pool, l, requests)
}

// errUndo rolls a transaction back.
var errUndo = errors.New("undo")

func (c *allCallers) inside(ctx context.Context, pool *pgxpool.Pool, l *limiter.Limiter, requests []limiter.Request) error {
	var all limiter.Results
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) (err error) {
		if all, err = l.InTx(tx).AllowAll(ctx, requests...); err == nil && rand.IntN(3) == 0 {
			err = errUndo
		}
		return err
	})
	switch {
	case errors.Is(err, errUndo):
		return nil
	case err == nil && all.Allowed:
		c.count(requests)
	}
	return err
}

func (c *allCallers) count(requests []limiter.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, request := range requests {
		c.granted[limiter.Request{Policy: request.Policy, Key: request.Key}] += request.Cost
	}
}

// TestAllowAllInTxOfARowThatIsGone: an AllowAll in a transaction waits for one key while
// another key of it is used up, is empty again and loses its row. It decides that key as of
// a time when those units are no longer in use.
func TestAllowAllInTxOfARowThatIsGone(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	for _, p := range testworld.Variants(3, 50*time.Millisecond) {
		holds, waits := testworld.Begin(t, pool, pgx.TxOptions{}), testworld.Begin(t, pool, pgx.TxOptions{})
		testworld.Must(t)(l.InTx(holds).Allow(t.Context(), p, "a"))
		answer := make(chan limiter.Results, 1)
		go func() {
			all, err := l.InTx(waits).AllowAll(t.Context(), p.Request("a", 1), p.Request("b", 1))
			if err != nil {
				t.Error(err)
			}
			answer <- all
		}()
		testworld.AwaitBlocked(t, pool)
		var used limiter.Result
		for range 3 {
			used = testworld.Must(t)(l.Allow(t.Context(), p, "b"))
		}
		testworld.Eventually(t, "the key is empty again", func(ctx context.Context) (bool, error) {
			r, err := l.Check(ctx, p, "b", 3)
			return r.Allowed && r.Level == 0, err
		})
		testworld.Exec(t, pool, "DELETE FROM "+testworld.TableOf(p.Algorithm)+" WHERE key = 'b'") // as the janitor does
		testworld.Commit(t, holds)
		all := testworld.Receive(t, answer, "the AllowAll's answer")
		if b := all.PerRequest[1]; !all.Allowed || !b.At.After(used.At) {
			t.Errorf("%s: allowed %v, %v after three others", testworld.Variant(p), all.Allowed, b.At.Sub(used.At))
		}
		testworld.Commit(t, waits)
	}
}
