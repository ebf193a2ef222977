package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestKeysShowWhatTheLibraryDecides: the view has the level, burst and remaining that the
// library returns, the block, and the counts of the other tables.
func TestKeysShowWhatTheLibraryDecides(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	for _, p := range everyTable() {
		use(t, l, p, "k", "other")
		open := int64(0)
		if p.Algorithm != limiter.LeakyBucketQueue {
			testworld.Reserve(t, l, p.Request("k", 2), time.Hour)
			open++
		}
		testworld.Exec(t, pool, `INSERT INTO pglimit_denial (denials, shadowed, units, slot_us, last_denied_at_us, policy, key, algorithm)
			SELECT n, 0, 1, us - n * 36000000000, us - n * 36000000000, $1, 'k', $1
			FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS us) AS c, unnest(ARRAY[1, 2, 3]) AS n`, string(p.Algorithm))
		var level, burst, share, remaining float64
		var blocked, denied *time.Time
		var updated, empty time.Time
		var reservations, denials int64
		read := func() {
			t.Helper()
			err := pool.QueryRow(t.Context(), `SELECT level, burst, share, remaining, blocked_until, updated_at, empty_at, reservations, denials, last_denied_at
				FROM pglimit_keys WHERE policy = $1 AND key = 'k'`, p.Name).Scan(&level, &burst, &share, &remaining, &blocked, &updated, &empty, &reservations, &denials, &denied)
			if err != nil {
				t.Fatalf("%s: %v", p.Algorithm, err)
			}
		}
		read()
		r := testworld.Must(t)(l.Check(t.Context(), p, "k", 0))
		if !testworld.Near(level, r.Level) || burst != r.Burst || !testworld.Near(remaining, r.Remaining) || !testworld.Near(share, r.Level/r.Burst) || blocked != nil {
			t.Errorf("%s: level %v, burst %v, share %v, remaining %v, blocked until %v; want %+v", p.Algorithm, level, burst, share, remaining, blocked, r)
		}
		// The denials of 10, 20 and 30 hours ago are 1, 2 and 3; a day has the first two.
		if reservations != open || denials != 3 || denied == nil || time.Since(*denied).Round(time.Hour) != 10*time.Hour {
			t.Errorf("%s: %d reservations, %d denials, the last at %v", p.Algorithm, reservations, denials, denied)
		}
		if time.Since(updated).Abs() > time.Minute || empty.Before(updated) {
			t.Errorf("%s: updated at %v, empty at %v", p.Algorithm, updated, empty)
		}
		testworld.Must(t)(l.Charge(t.Context(), p, "k", 100)) // full: the slack is not shown
		must.Succeed(t, l.Block(t.Context(), p, "k", time.Hour))
		if read(); !testworld.Near(level, 10) || level > 10 || share > 1 || remaining != 0 || blocked == nil || time.Until(*blocked).Round(time.Minute) != time.Hour {
			t.Errorf("%s: full and blocked: level %v, share %v, remaining %v, blocked until %v", p.Algorithm, level, share, remaining, blocked)
		}
		use(t, l, p, "wide")
		narrow := p
		narrow.Limit = 2 // the level is carried over, above the burst
		testworld.Must(t)(l.AllowN(t.Context(), narrow, "wide", 1))
		if share := testworld.Value[float64](t, pool, `SELECT share FROM pglimit_keys WHERE policy = $1 AND key = 'wide'`, p.Name); p.Algorithm != limiter.SlidingWindowLog && !testworld.Near(share, 2) {
			t.Errorf("%s: after a smaller limit the share is %v", p.Algorithm, share)
		}
		must.Succeed(t, l.Block(t.Context(), p, "fresh", time.Hour))
		if !testworld.Value[bool](t, pool, `SELECT burst IS NULL AND share IS NULL AND remaining = 0 AND level = 0 FROM pglimit_keys WHERE policy = $1 AND key = 'fresh'`, p.Name) {
			t.Errorf("%s: a row that a block made has a burst", p.Algorithm)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_keys`); n != 4*6 {
		t.Errorf("the view has %d rows, want 24", n)
	}
}

// TestKeysBurstHasNoSlack: the slack in a row's capacity is taken off again, whatever verb
// wrote it.
func TestKeysBurstHasNoSlack(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	limits := []float64{1e-9, 0.001, 0.1, 1, 3, 7, 999.99999, 1000, 1001, 99999.12345, 123456.789, 1e9 + 1, 8.6e9 + 1, 1e10 + 1, 17179869184, 1e15 + 1, 1 << 53}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		limits = append(limits, math.Round(math.Exp(random.Float64()*20)*1e4+1)/1e4, math.Round(random.Float64()*1e6+1)/1e4)
	}
	for n, limit := range limits {
		p := limiter.Policy{Name: "burst", Algorithm: limiter.FixedWindow, Limit: limit, Period: time.Hour}
		if n%3 == 0 {
			testworld.Must(t)(l.Charge(t.Context(), p, "k", limit))
		} else {
			testworld.Must(t)(l.AllowN(t.Context(), p, "k", limit))
		}
		var burst, level, remaining float64
		must.Succeed(t, pool.QueryRow(t.Context(), `SELECT burst, level, remaining FROM pglimit_keys WHERE policy = 'burst' AND key = 'k'`).Scan(&burst, &level, &remaining))
		if strconv.FormatFloat(burst, 'g', 15, 64) != strconv.FormatFloat(limit, 'g', 15, 64) || remaining != 0 {
			t.Errorf("limit %v: burst %v, level %v, remaining %v", limit, burst, level, remaining)
		}
		must.Succeed(t, l.Reset(t.Context(), p, "k"))
	}
}

// TestKeysByPolicyAndKeyUsePrimaryKeys: a query of the view by policy and key reads one row
// of each table at most, and scans none.
func TestKeysByPolicyAndKeyUsePrimaryKeys(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	for _, a := range algorithm.Tables {
		many(t, pool, a, 3, 300)
	}
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeSimpleProtocol} {
		got := plan(t, pool, `SELECT * FROM pglimit_keys WHERE policy = $1 AND key = $2`, mode, "filler-1", "k77")
		if strings.Contains(got, "Seq Scan") || strings.Count(got, "_pkey on pglimit_") < 7 || strings.Contains(got, "Rows Removed by Filter") {
			t.Errorf("the plan scans:\n%s", got)
		}
		for _, line := range strings.Split(got, "\n") {
			if strings.Contains(line, "Index Cond") && !(strings.Contains(line, "policy = ") && strings.Contains(line, "key = ")) {
				t.Errorf("a condition without policy and key: %s", line)
			}
		}
	}
	// Of one algorithm, the other tables are not touched.
	got := plan(t, pool, `SELECT level FROM pglimit_keys WHERE policy = 'filler-1' AND key = 'k77' AND algorithm = 'token_bucket'`)
	if strings.Contains(got, "pglimit_fixed_window") || !strings.Contains(got, "pglimit_token_bucket_pkey") || strings.Contains(got, "pglimit_denial") {
		t.Errorf("the plan reads other tables:\n%s", got)
	}
}

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
		for _, held := range []string{"pglimit_token_bucket", "pglimit_reservation"} {
			ends := name == "reset" || name == "forget"
			if held == "pglimit_reservation" && !ends {
				continue
			}
			t.Run(name+" "+held, func(t *testing.T) {
				t.Parallel()
				pool := testworld.NewPool(t)
				i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
				p := policy("p", limiter.GCRA)
				for _, key := range []string{"c", "b", "a"} { // the last in order comes first in the table
					testworld.Reserve(t, l, p.Request(key, 1), time.Hour)
				}
				must.Succeed(t, l.Block(t.Context(), p, "c", time.Hour))
				testworld.Exec(t, pool, "ANALYZE pglimit_token_bucket, pglimit_reservation")
				var all []inspect.Target
				for _, key := range []string{"b", "c", "a"} {
					all = append(all, inspect.Target{Algorithm: algorithm.GCRA, Policy: "p", Key: key})
				}
				tx := testworld.Begin(t, pool, pgx.TxOptions{})
				must.OK(tx.Exec(t.Context(), `SELECT 1 FROM `+held+` WHERE key = 'a' FOR UPDATE`))(t)
				ended := make(chan error, 1)
				go func() {
					_, err := act(t.Context(), i, all)
					ended <- err
				}()
				testworld.AwaitBlocked(t, pool)
				free := func(table string) string {
					return testworld.Value[string](t, pool, `WITH f AS (SELECT key FROM `+table+` ORDER BY key FOR UPDATE SKIP LOCKED) SELECT string_agg(key, '') FROM f`)
				}
				if held == "pglimit_reservation" {
					if got := free("pglimit_token_bucket") + " " + free("pglimit_reservation"); got != "abc bc" {
						t.Errorf("free are %q, want all rows, and the reservations of b and c", got)
					}
				} else if got := free("pglimit_token_bucket"); got != "bc" {
					t.Errorf("free are %q, want bc", got)
				}
				must.Succeed(t, tx.Rollback(t.Context()))
				if err := testworld.Receive(t, ended, "the change"); err != nil {
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
	pool := testworld.NewPool(t)
	i, l := inspect.New(pool), testworld.NewLimiter(t, pool, nil)
	p := policy("p", limiter.TokenBucket)
	use(t, l, p, "k1", "k2", "k3", "k4", "k5")
	all := targets(t, i, prefix("k"), inspect.Filter{})
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	testworld.Must(t)(l.InTx(tx).Allow(t.Context(), p, "k3"))

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
	testworld.Receive(t, done, "the free rows")
	if left := testworld.Value[string](t, pool, `SELECT string_agg(key, '') FROM pglimit_token_bucket`); left != "k3" {
		t.Errorf("left are %q", left)
	}
	testworld.Commit(t, tx)
	if err := testworld.Receive(t, ended, "the reset"); err != nil {
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
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.Setting("deadlock_timeout", "3ms"), func(c *pgxpool.Config) { c.ConnConfig.Tracer = found })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i, l := inspect.New(pool), testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
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
	rounds := testworld.Size(10, 100)
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
