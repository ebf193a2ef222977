package inspect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/limiter"
)

// TestLocksInOrder: while a change waits for the first key of a batch, it has locked none
// of the others, although their rows come first in the table. While it waits for a
// reservation, it has locked no row.
func TestLocksInOrder(t *testing.T) {
	t.Parallel()
	patient := inspect.Options{LockWait: time.Minute}
	for name, act := range map[string]func(context.Context, *inspect.Inspector, []inspect.Target) ([]inspect.Count, error){
		"block": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Block(ctx, all, time.Hour, patient)
		},
		"unblock": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Unblock(ctx, all, patient)
		},
		"reset": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Reset(ctx, all, patient)
		},
		"forget": func(ctx context.Context, i *inspect.Inspector, all []inspect.Target) ([]inspect.Count, error) {
			return i.Forget(ctx, all, patient)
		},
	} {
		for _, held := range []string{"pglimit_gcra", "pglimit_reservation"} {
			ends := name == "reset" || name == "forget"
			if held == "pglimit_reservation" && !ends {
				continue
			}
			t.Run(name+" "+held, func(t *testing.T) {
				t.Parallel()
				pool := bed.NewPool(t)
				i, l := inspect.New(pool), bed.NewLimiter(t, pool, nil)
				p := policy("p", limiter.GCRA)
				for _, key := range []string{"c", "b", "a"} { // the last in order comes first in the table
					bed.Reserve(t, l, p.Request(key, 1), time.Hour)
				}
				if err := l.Block(t.Context(), p, "c", time.Hour); err != nil {
					t.Fatal(err)
				}
				bed.Exec(t, pool, "ANALYZE pglimit_gcra, pglimit_reservation")
				var all []inspect.Target
				for _, key := range []string{"b", "c", "a"} {
					all = append(all, inspect.Target{Algorithm: algorithm.GCRA, Policy: "p", Key: key})
				}
				tx := bed.Begin(t, pool, pgx.TxOptions{})
				if _, err := tx.Exec(t.Context(), `SELECT 1 FROM `+held+` WHERE key = 'a' FOR UPDATE`); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() {
					_, err := act(t.Context(), i, all)
					ended <- err
				}()
				bed.AwaitBlocked(t, pool)
				free := func(table string) string {
					return bed.Value[string](t, pool, `WITH f AS (SELECT key FROM `+table+` ORDER BY key FOR UPDATE SKIP LOCKED) SELECT string_agg(key, '') FROM f`)
				}
				if held == "pglimit_reservation" {
					if got := free("pglimit_gcra") + " " + free("pglimit_reservation"); got != "abc bc" {
						t.Errorf("free are %q, want all rows, and the reservations of b and c", got)
					}
				} else if got := free("pglimit_gcra"); got != "bc" {
					t.Errorf("free are %q, want bc", got)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := bed.Receive(t, ended, "the change"); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestHeldRow: a transaction that holds one row of a batch delays no other, gets its time,
// and is named if it takes too long.
func TestHeldRow(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	i, l := inspect.New(pool), bed.NewLimiter(t, pool, nil)
	p := policy("p", limiter.TokenBucket)
	use(t, l, p, "k1", "k2", "k3", "k4", "k5")
	all := targets(t, i, prefix("k"), inspect.Filter{})
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	bed.Must(t)(l.InTx(tx).Allow(t.Context(), p, "k3"))

	// It takes too long.
	counts, err := i.Block(t.Context(), all, time.Hour, inspect.Options{LockWait: time.Millisecond, Wait: time.Millisecond})
	var locked *inspect.LockedError
	if !errors.As(err, &locked) || len(locked.Targets) != 1 || locked.Targets[0] != (inspect.Target{Algorithm: algorithm.TokenBucket, Policy: "p", Key: "k3"}) || !errors.Is(err, limiter.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if render(counts) != "p token_bucket 4" {
		t.Errorf("counts %s", render(counts))
	}
	// It ends in time.
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		counts, err := i.Reset(t.Context(), all, inspect.Options{Wait: time.Minute, Progress: func(n, _ int) {
			if n == 4 {
				close(done)
			}
		}})
		if err == nil && render(counts) != "p token_bucket 5" {
			err = errors.New(render(counts))
		}
		ended <- err
	}()
	bed.Receive(t, done, "the free rows")
	if left := bed.Value[string](t, pool, `SELECT string_agg(key, '') FROM pglimit_token_bucket`); left != "k3" {
		t.Errorf("left are %q", left)
	}
	bed.Commit(t, tx)
	if err := bed.Receive(t, ended, "the reset"); err != nil {
		t.Error(err)
	}
}

// TestNoDeadlocks: changes of the same keys in several batches, beside requests for several
// keys at once, reservations that end, and transactions that lock in the library's order.
// The changes would wait for a minute, and the server looks for deadlocks before requests
// give up, so that it finds each.
func TestNoDeadlocks(t *testing.T) {
	t.Parallel()
	found := new(deadlocks)
	pool := bed.Connect(t, bed.NewDatabase(t), bed.Setting("deadlock_timeout", "3ms"), func(c *pgxpool.Config) { c.ConnConfig.Tracer = found })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i, l := inspect.New(pool), bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	both := []limiter.Policy{policy("p", limiter.GCRA), policy("q", limiter.SlidingWindowLog)}
	var keys []string
	for n := range 12 {
		keys = append(keys, fmt.Sprintf("k%02d", 11-n))
	}
	use(t, l, both[0], keys...)
	use(t, l, both[1], keys...)
	var traffic, changes sync.WaitGroup
	for n := range 3 {
		traffic.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(n)))
			for ctx.Err() == nil {
				var requests []limiter.Request
				for _, k := range random.Perm(len(keys))[:4] {
					requests = append(requests, both[random.IntN(2)].Request(keys[k], 0.01))
				}
				if _, err := l.AllowAll(ctx, requests...); err != nil && ctx.Err() == nil {
					t.Error("AllowAll:", err)
				}
				r, err := l.Reserve(ctx, both[0].Request(keys[random.IntN(len(keys))], 0.01), time.Hour)
				if err == nil && r.Result.Allowed {
					if _, err = l.Settle(ctx, r.ID, 0.005); errors.Is(err, limiter.ErrNoReservation) {
						err = nil // it was forgotten
					}
				}
				if err != nil && ctx.Err() == nil {
					t.Error("reserve and settle:", err)
				}
			}
		})
	}
	rounds := bed.Size(10, 100)
	options := inspect.Options{Batch: 5, LockWait: time.Minute}
	for n := range 4 {
		changes.Go(func() {
			for range rounds {
				all, err := i.Targets(ctx, prefix("k"), inspect.Filter{}, 100, n == 3)
				if err == nil {
					switch n {
					case 0:
						_, err = i.Block(ctx, all, time.Microsecond, options)
					case 1:
						_, err = i.Unblock(ctx, all, options)
					case 2:
						_, err = i.Reset(ctx, all, options)
					case 3:
						_, err = i.Forget(ctx, all, options)
					}
				}
				if err != nil {
					t.Error(n, err)
				}
			}
		})
	}
	changes.Wait()
	cancel()
	traffic.Wait()
	if n := found.n.Load(); n > 0 {
		t.Errorf("the server found %d deadlocks", n)
	}
}

// deadlocks counts the statements that failed with a deadlock.
type deadlocks struct{ n atomic.Int64 }

func (*deadlocks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (d *deadlocks) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	var answer *pgconn.PgError
	if errors.As(data.Err, &answer) && answer.Code == "40P01" {
		d.n.Add(1)
	}
}
