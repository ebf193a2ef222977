package keys

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// hour is a policy whose rows are due after an hour.
func hour(a limiter.Algorithm, most int64) limiter.Policy {
	return limiter.Policy{Name: "bounded", Algorithm: a, Limit: 100, Period: time.Hour, MaxKeys: most}
}

// TestFlood: eight processes make up a thousand keys each, and one of them loses its connections
// again and again. At no moment has the policy more rows than it may have, or than its count
// says. Keys that have a row go on.
func TestFlood(t *testing.T) {
	t.Parallel()
	for _, a := range []limiter.Algorithm{limiter.TokenBucket, limiter.SlidingWindowLog} {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			const processes, made, known = 8, 1000, 20
			address, p := testworld.NewDatabase(t), hour(a, 500)
			p.Limit = 1e6
			pool := testworld.Connect(t, address)
			var all []*limiter.Limiter
			for i := range processes {
				all = append(all, testworld.NewLimiter(t, testworld.Connect(t, address, testworld.Connections(4), testworld.Setting("application_name", fmt.Sprint("flood", i))), nil))
			}
			for i := range known {
				testworld.Must(t)(all[0].Allow(t.Context(), p, fmt.Sprint("known", i)))
			}
			var flood sync.WaitGroup
			var granted, denied, broken atomic.Int64
			for i, l := range all {
				flood.Go(func() {
					each(8, made, func(k int) {
						r, err := l.Allow(t.Context(), p, fmt.Sprint("made-up", i, k))
						switch {
						case err != nil && i == 0: // its connections are ended
							broken.Add(1)
						case err != nil:
							t.Error(err)
						case r.Allowed:
							granted.Add(1)
						case r.Reason == limiter.ReasonKeys:
							denied.Add(1)
						default:
							t.Errorf("a new key is denied: %v", r)
						}
					})
				})
			}
			ended, watched := make(chan struct{}), sync.WaitGroup{}
			watched.Go(func() {
				for {
					if rows, count := rowsAndCount(t, pool, p); rows > count || count > p.MaxKeys {
						t.Errorf("%d rows, and the count is %d of %d", rows, count, p.MaxKeys)
					}
					for i := range known {
						if r := testworld.Must(t)(all[7].Allow(t.Context(), p, fmt.Sprint("known", i))); !r.Allowed {
							t.Errorf("a known key is denied: %v", r)
						}
					}
					testworld.Exec(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flood0' AND datname = current_database()`)
					select {
					case <-ended:
						return
					default:
					}
				}
			})
			flood.Wait()
			close(ended)
			watched.Wait()
			rows, count := rowsAndCount(t, pool, p)
			if rows > count || count > p.MaxKeys || rows < p.MaxKeys*3/4 {
				t.Errorf("at the end %d rows, and the count is %d of %d", rows, count, p.MaxKeys)
			}
			if n := granted.Load() + known; n > rows || n+broken.Load() < rows || denied.Load() == 0 {
				t.Errorf("%d keys were granted, %d denied, %d broken, and %d have rows", n, denied.Load(), broken.Load(), rows)
			}
		})
	}
}

// each calls f for 0 to n-1 from several goroutines.
func each(callers, n int, f func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	all.Wait()
}

// TestRoomAgain: rows that the janitor deletes make room, for other processes too. A process that
// knew a deleted key asks again for it.
func TestRoomAgain(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.TokenBucket, 5)
	other := w.another()
	w.fill(w.Limiter, p, 3)
	w.forward(30 * time.Minute)
	w.fill(w.Limiter, p, 3) // they are known until their rows are due
	w.allow(w.Limiter, p, "later", "")
	w.forward(25 * time.Minute)
	w.sweep() // counts, so that the next one does not
	w.forward(7 * time.Minute)
	w.allow(w.Limiter, p, "last", "")
	w.expect(p, 5, 5)
	w.allow(other, p, "new", limiter.ReasonKeys)
	w.allow(other, p, "later", "")
	w.expect(p, 5, 5)
	w.sweep()
	w.expect(p, 2, 2)
	w.forward(2 * time.Second) // the process remembers for a second that there is no room
	for i := range 3 {
		w.allow(other, p, fmt.Sprint("second", i), "")
	}
	w.expect(p, 5, 5)
	w.allow(w.Limiter, p, "first0", limiter.ReasonKeys)
	w.expect(p, 5, 5)
}

// TestDueRow: a row that is due stays while its key is used, and is one of few that the
// janitor looks at.
func TestDueRow(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.TokenBucket, 1)
	p.Period = time.Second
	for range 30 {
		w.allow(w.Limiter, p, "k", "")
		w.forward(50 * time.Second)
		w.sweep()
		w.expect(p, 1, 1)
		w.allow(w.Limiter, p, "another", limiter.ReasonKeys)
	}
	w.forward(12 * time.Minute)
	w.sweep()
	w.expect(p, 0, 0)
}

// TestTwoLookForARow: a process that looks for a row while another makes it last for longer finds
// it.
func TestTwoLookForARow(t *testing.T) {
	w := newWorld(t)
	w.allow(w.Limiter, hour(limiter.TokenBucket, 1), "k", "")
	first, second := testworld.Begin(t, w.pool, pgx.TxOptions{}), testworld.Begin(t, w.pool, pgx.TxOptions{})
	later := w.now().Add(time.Hour).UnixMicro()
	look := func(tx pgx.Tx) (left int64, err error) {
		return db.New().TokenBucketPresent(t.Context(), tx, db.TokenBucketPresentParams{Policy: "bounded", Key: "k", NowUs: &later})
	}
	must.OK(look(first))(t)
	pid, found := second.Conn().PgConn().PID(), make(chan int64)
	go func() {
		left, err := look(second)
		if err != nil {
			t.Error(err)
		}
		found <- left
	}()
	testworld.Eventually(t, "the second waits", func(context.Context) (bool, error) {
		return testworld.Value[bool](t, w.pool, "SELECT cardinality(pg_blocking_pids($1)) > 0", pid), nil
	})
	must.Succeed(t, first.Commit(t.Context()))
	if left := <-found; left <= 0 {
		t.Errorf("the row was not found: %d", left)
	}
}

// TestPermitsEnd: a process uses permits that it took before for up to five seconds: the janitor
// relies on that before it counts.
func TestPermitsEnd(t *testing.T) {
	for after, count := range map[time.Duration]int64{5*time.Second - time.Microsecond: 3, 5 * time.Second: 4} {
		t.Run(after.String(), func(t *testing.T) {
			w, p := newWorld(t), hour(limiter.TokenBucket, 300)
			w.fill(w.Limiter, p, 2) // the second of a second takes two
			w.expect(p, 2, 3)
			w.forward(after)
			w.fill(w.Limiter, p, 3)
			w.expect(p, 3, count)
		})
	}
}

// TestLostPermits: permits of a process that ended are counted until the janitor counts the
// rows, when nobody has taken one for seven minutes.
func TestLostPermits(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.SlidingWindowCounter, 10)
	w.fill(w.Limiter, p, 3)
	testworld.Exec(t, w.pool, `UPDATE pglimit_key_count SET keys = 10`)
	w.forward(2 * time.Second)
	w.allow(w.Limiter, p, "new", limiter.ReasonKeys)
	for range 4 { // permits may still be used
		w.sweep()
		w.expect(p, 3, 10)
		w.forward(88 * time.Second)
	}
	w.forward(70 * time.Second)
	w.sweep()
	w.expect(p, 3, 3)
	w.allow(w.Limiter, p, "new", "")
	w.expect(p, 4, 4)
	// A program that does not know the bound has inserted rows.
	w.forward(20 * time.Minute)
	unbounded := p
	unbounded.MaxKeys = 0
	w.fill(w.Limiter, unbounded, 9)
	w.expect(p, 10, 4)
	w.allow(w.Limiter, p, "newer", "")
	w.sweep()
	w.expect(p, 11, 11)
	w.forward(2 * time.Second)
	w.allow(w.Limiter, p, "newest", limiter.ReasonKeys)
	// When it counts again, a process has just taken permits.
	w.forward(20 * time.Minute)
	testworld.Exec(t, w.pool, `UPDATE pglimit_key_count SET keys = 14, taken_at_us = $1`, w.now().UnixMicro())
	w.sweep()
	w.expect(p, 11, 14)
}

// TestReset: a key that was reset may have a row again without another permit, since other
// processes know it. The janitor waits for that before it counts.
func TestReset(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.LeakyBucket, 2)
	other := w.another()
	w.fill(w.Limiter, p, 2)
	w.forward(20 * time.Minute)
	w.allow(other, p, "first0", "")
	must.Succeed(t, w.Reset(t.Context(), p, "first0"))
	w.sweep()
	w.expect(p, 1, 2)
	w.allow(other, p, "first0", "")
	w.expect(p, 2, 2)
	must.Succeed(t, w.Reset(t.Context(), p, "first0"))
	w.forward(8 * time.Minute)
	w.sweep()
	w.expect(p, 1, 1)
	w.allow(other, p, "new", "")
	w.allow(other, p, "first0", limiter.ReasonKeys)
	w.expect(p, 2, 2)
}

// TestTx: a transaction that is rolled back gives the row and its permit back, and what it found
// is known to none. Until its end it keeps the count.
func TestTx(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.TokenBucket, 2)
	w.fill(w.Limiter, p, 1)
	for _, commit := range []bool{false, true} {
		tx := testworld.Begin(t, w.pool, pgx.TxOptions{})
		in := w.InTx(tx)
		for _, c := range []struct {
			key  string
			want limiter.Reason
		}{{"in-tx", ""}, {"first0", ""}, {"another", limiter.ReasonKeys}, {"in-tx", ""}} {
			if r := testworld.Must(t)(in.Allow(t.Context(), p, c.key)); r.Reason != c.want {
				t.Errorf("in the transaction %s: %v, want %q", c.key, r, c.want)
			}
		}
		if commit {
			testworld.Commit(t, tx)
			w.expect(p, 2, 2)
			w.allow(w.Limiter, p, "another", limiter.ReasonKeys)
		} else if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			w.expect(p, 1, 1)
		}
	}
}

// TestAllowAll: if one of the keys has no row and gets none, all are denied by it. A flood of
// new keys that another limit denies gets no rows.
func TestAllowAll(t *testing.T) {
	w := newWorld(t)
	p, address := hour(limiter.TokenBucket, 3), limiter.Policy{Name: "address", Algorithm: limiter.TokenBucket, Limit: 5, Period: time.Hour}
	ask := func(keys ...string) limiter.Results {
		requests := []limiter.Request{address.Request("a", 1)}
		for _, k := range keys {
			requests = append(requests, p.Request(k, 1))
		}
		return must.OK(w.Limiter.AllowAll(t.Context(), requests...))(t)
	}
	if all := ask("k1", "k2"); !all.Allowed {
		t.Errorf("two new keys: %+v", all)
	}
	w.expect(p, 2, 2)
	all := ask("k1", "k3", "k4", "k5")
	if all.Allowed || all.PerRequest[0].Source != limiter.SourceSkipped || all.PerRequest[all.DeniedBy].Reason != limiter.ReasonKeys {
		t.Errorf("more keys than rows: %+v", all)
	}
	if r := all.PerRequest[1]; r.Source != limiter.SourceSkipped {
		t.Errorf("the key that has a row: %+v", r)
	}
	w.expect(p, 3, 3)
	for range 4 {
		ask("k1")
	}
	w.forward(70 * time.Minute)
	w.sweep()
	w.expect(p, 0, 0)
	testworld.Must(t)(w.AllowN(t.Context(), address, "a", 5))
	if all := ask("k6"); all.Allowed || all.PerRequest[0].Reason != limiter.ReasonLimit {
		t.Errorf("the address has nothing left: %+v", all)
	}
	w.expect(p, 0, 0)
}

// TestErrors: an operator's block of a key that gets no row is an error, and nothing waits for
// a count that a transaction has locked but new keys.
func TestErrors(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.TokenBucket, 1)
	w.fill(w.Limiter, p, 1)
	if err := w.Block(t.Context(), p, "new", time.Hour); !errors.Is(err, limiter.ErrOverloaded) {
		t.Errorf("Block of a key without a row: %v", err)
	}
	if err := w.Block(t.Context(), p, "first0", time.Hour); err != nil {
		t.Error(err)
	}
	w.allow(w.Limiter, p, "first0", limiter.ReasonBlocked)
	p.MaxKeys = 100
	tx := testworld.Begin(t, w.pool, pgx.TxOptions{})
	must.OK(tx.Exec(t.Context(), `SELECT FROM pglimit_key_count FOR UPDATE`))(t)
	soon := must.OK(limiter.New(w.pool, &limiter.Config{Now: w.now, Timeout: 300 * time.Millisecond}))(t)
	if _, err := soon.Allow(t.Context(), p, "new"); !errors.Is(err, limiter.ErrUnavailable) && !errors.Is(err, limiter.ErrLocked) {
		t.Errorf("a new key while the count is locked: %v", err)
	}
	w.allow(w.another(), p, "first0", limiter.ReasonBlocked)
	w.sweep() // passes over it
	must.Succeed(t, tx.Rollback(t.Context()))
	w.forward(2 * time.Second) // the process remembers for a second that there is no room
	w.allow(w.Limiter, p, "new", "")
}

// TestAlike: a limiter in memory answers as one in a database.
func TestAlike(t *testing.T) {
	w := newWorld(t)
	p := hour(limiter.FixedWindow, 3)
	p.RestLimit = 5
	memory := limiter.NewMemory(&limiter.Config{Now: w.now})
	for i, f := range []func(l *limiter.Limiter) (any, error){
		func(l *limiter.Limiter) (any, error) { return l.Allow(t.Context(), p, "k1") },
		func(l *limiter.Limiter) (any, error) { return l.AllowN(t.Context(), p, "k2", 7) },
		func(l *limiter.Limiter) (any, error) { return l.Charge(t.Context(), p, "k3", 2) },
		func(l *limiter.Limiter) (any, error) { return l.Check(t.Context(), p, "k4", 1) },
		func(l *limiter.Limiter) (any, error) { return l.AllowN(t.Context(), p, "k4", 2) },
		func(l *limiter.Limiter) (any, error) { return l.AllowUpTo(t.Context(), p, "k5", 9) },
		func(l *limiter.Limiter) (any, error) { return l.Allow(t.Context(), p, "k6") },
		func(l *limiter.Limiter) (any, error) { return l.AllowN(t.Context(), p, "k6", 6) },
		func(l *limiter.Limiter) (any, error) { return l.AllowN(t.Context(), p, "k2", 93) },
		func(l *limiter.Limiter) (any, error) { return l.Charge(t.Context(), p, "k7", 1) },
		func(l *limiter.Limiter) (any, error) { return l.Reserve(t.Context(), p.Request("k7", 1), time.Hour) },
		func(l *limiter.Limiter) (any, error) {
			return l.AllowAll(t.Context(), p.Request("k1", 1), p.Request("k7", 1))
		},
		func(l *limiter.Limiter) (any, error) {
			strict := p
			strict.RestLimit = 0
			return l.Allow(t.Context(), strict, "k8")
		},
		func(l *limiter.Limiter) (any, error) {
			strict := p
			strict.RestLimit = 0
			return l.Charge(t.Context(), strict, "k8", 1)
		},
		func(l *limiter.Limiter) (any, error) {
			shadow := p
			shadow.RestLimit, shadow.Shadow = 0, true
			return l.Allow(t.Context(), shadow, "k8")
		},
		func(l *limiter.Limiter) (any, error) { return l.Usage(t.Context(), p, "k1") },
	} {
		var told [2]string
		for j, l := range []*limiter.Limiter{w.Limiter, memory} {
			got, err := f(l)
			told[j] = fmt.Sprintf("%v, %v", alike(got), err)
		}
		if told[0] != told[1] {
			t.Errorf("step %d: the database says\n%s\nand memory\n%s", i, told[0], told[1])
		}
	}
	w.expect(p, 3, 3)
}

// alike returns an answer without its source.
func alike(answer any) any {
	switch a := answer.(type) {
	case limiter.Result:
		if a.Source == limiter.SourceMemory {
			a.Source = limiter.SourceDatabase
		}
		return fmt.Sprintf("%+v", a)
	case limiter.Reservation:
		return alike(a.Result)
	case limiter.Results:
		var all []any
		for _, r := range a.PerRequest {
			all = append(all, alike(r))
		}
		return all
	case limiter.Usage:
		return alike(a.Result)
	}
	return answer
}

// TestRest: all keys without a row share one, under its own limit.
func TestRest(t *testing.T) {
	w := newWorld(t)
	p := limiter.Policy{Name: "rest", Algorithm: limiter.TokenBucket, Limit: 100, Period: time.Hour, Burst: 200, BlockFor: time.Hour, MaxKeys: 2, RestLimit: 10}
	w.fill(w.Limiter, p, 2)
	for i := range 20 {
		r := w.allow([]*limiter.Limiter{w.Limiter, w.another()}[i%2], p, fmt.Sprint("made-up", i), "")
		if r.Limit != 10 || r.Burst != 20 || r.Remaining != float64(19-i) {
			t.Errorf("the answer of the shared row is %+v", r)
		}
	}
	r := w.allow(w.Limiter, p, "made-up", limiter.ReasonLimit)
	if r.RetryAfter.Round(time.Second) != 6*time.Minute {
		t.Errorf("the shared row is full for %v, want 6m", r.RetryAfter)
	}
	w.forward(6 * time.Minute)
	granted := w.allow(w.Limiter, p, "made-up", "") // no block began
	if back := testworld.Must(t)(w.Undo(t.Context(), p, "made-up", granted)); back.Granted != 0 {
		t.Errorf("Undo of the shared row's answer gave %v back", back.Granted)
	}
	w.allow(w.Limiter, p, "first0", "")
	w.expect(p, 2, 2)
}

// TestOverSQL: database/sql keeps the bound too.
func TestOverSQL(t *testing.T) {
	testworld.OverPools(t, func(t *testing.T, pool *pgxpool.Pool, over any) {
		p := hour(limiter.LeakyBucketQueue, 3)
		l := limiterOver(t, over)
		for i := range 6 {
			r := testworld.Must(t)(l.Allow(context.Background(), p, fmt.Sprint(i)))
			if r.Allowed != (i < 3) {
				t.Errorf("key %d: %v", i, r)
			}
		}
		if rows, count := rowsAndCount(t, pool, p); rows != 3 || count != 3 {
			t.Errorf("%d rows, and the count is %d", rows, count)
		}
	})
}
