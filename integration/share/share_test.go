package share

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestShareOneTransaction: requests of all verbs that wait commit together, with their
// durability, and have the results of the order in which they arrived.
func TestShareOneTransaction(t *testing.T) {
	t.Parallel()
	for _, session := range []string{"on", "off"} {
		log := bed.NewCommitLog(t)
		clock := new(conformance.Clock)
		c := newCrowd(t, log.URL, limiter.Config{Now: clock.Now}, bed.Setting("synchronous_commit", session))
		for _, durability := range bed.Durabilities {
			for _, p := range bed.Holdable() {
				p.Name, p.Limit, p.Period, p.Durability = fmt.Sprint(p.Name, "-", durability), 100, 1000*time.Hour, durability
				granted := bed.Must(t)(c.AllowN(t.Context(), p, "k", 8))
				var results []limiter.Result
				keep := func(f func() (limiter.Result, error)) func() error {
					i := len(results)
					results = append(results, limiter.Result{})
					return func() (err error) {
						results[i], err = f()
						return err
					}
				}
				ctx := t.Context()
				first := charges(t, c.Limiter, p, "first")[0]
				errs := c.behind(first,
					keep(func() (limiter.Result, error) { return c.Charge(ctx, p, "k", 20) }),
					keep(func() (limiter.Result, error) { return c.Refund(ctx, p, "k", 3) }),
					keep(func() (limiter.Result, error) { return c.Undo(ctx, p, "k", granted) }),
					keep(func() (limiter.Result, error) {
						h, err := c.Reserve(ctx, p.Request("k", 5), time.Hour)
						return h.Result, err
					}),
					keep(func() (limiter.Result, error) {
						return c.Do(ctx, limiter.Request{Policy: p, Key: "k", Cost: 7, IdempotencyKey: "id"})
					}),
					keep(func() (limiter.Result, error) {
						h, err := c.Reserve(ctx, p.Request("k", 80), time.Hour)
						return h.Result, err
					}),
					keep(func() (limiter.Result, error) {
						return limiter.Result{Level: 29}, c.Block(ctx, p, "k", time.Minute)
					}),
					keep(func() (limiter.Result, error) {
						h, err := c.Reserve(ctx, p.Request("k", 1), time.Hour)
						return h.Result, err
					}),
					keep(func() (limiter.Result, error) { return limiter.Result{Level: 29}, c.Unblock(ctx, p, "k") }),
					keep(func() (limiter.Result, error) { return c.Charge(ctx, p, "k", 1) }),
				)
				if err := errors.Join(errs...); err != nil {
					t.Errorf("%s: %v", p.Name, err)
				}
				for i, want := range []float64{28, 25, 17, 22, 29, 29, 29, 29, 29, 30} {
					if r := results[i]; !bed.Near(r.Level, want) || (i == 5 || i == 7) != (!r.Allowed && r.Limit > 0) {
						t.Errorf("%s: result %d is %+v, want the level %v", p.Name, i, r, want)
					}
				}
				// The denials look for expired reservations.
				if sent := c.sent.take(); sent[0] != 1 || sent[1] != 10 {
					t.Errorf("%s: sent %v statements together", p.Name, sent)
				}
				if n := bed.Value[int](t, log.Pool, `SELECT count(DISTINCT xid) FROM committed WHERE policy = $1 AND key = 'k'`, p.Name); n != 2 {
					t.Errorf("%s: %d transactions", p.Name, n)
				}
				if n := bed.Value[int](t, log.Pool, `SELECT count(*) FROM committed WHERE policy = $1 AND setting <> $2`, p.Name, bed.CommittedWith(session, durability)); n != 0 {
					t.Errorf("%s: %d changes with another durability", p.Name, n)
				}
			}
		}
	}
}

// TestShareByDurability: requests of policies with different durability share nothing.
func TestShareByDurability(t *testing.T) {
	t.Parallel()
	log := bed.NewCommitLog(t)
	c := newCrowd(t, log.URL, limiter.Config{})
	relaxed := bucket
	relaxed.Name, relaxed.Durability = "relaxed", limiter.Relaxed
	var all []func() error
	for i := range 4 {
		k := fmt.Sprint(i)
		all = append(all, charges(t, c.Limiter, bucket, k)[0], charges(t, c.Limiter, relaxed, k)[0])
	}
	if err := errors.Join(c.behind(all...)...); err != nil {
		t.Error(err)
	}
	c.sent.expect(t, 1, 4, 3)
	changes := map[string]int{"0": 1, "1": 1, "2": 1, "3": 1}
	log.Expect(t, bucket, "on", changes)
	log.Expect(t, relaxed, "off", changes)
}

// TestShareReads: reads share a round trip among themselves.
func TestShareReads(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, bed.NewDatabase(t), limiter.Config{})
	all := charges(t, c.Limiter, bucket, "k", "k", "k")
	for i := range 5 {
		all = append(all, func() error {
			r, err := c.Check(t.Context(), bucket, fmt.Sprint("k", i), 1)
			if err == nil && (!r.Allowed || r.Remaining != 1000) {
				err = fmt.Errorf("%+v", r)
			}
			return err
		}, func() error {
			u, err := c.Usage(t.Context(), bucket, "other")
			if err == nil && u.Remaining != 1000 {
				err = fmt.Errorf("%+v", u)
			}
			return err
		})
	}
	if err := errors.Join(c.behind(all...)...); err != nil {
		t.Error(err)
	}
	c.sent.expect(t, 1, 10, 2)
}

// TestShareOneBadRequest: a key that the database cannot store fails alone.
func TestShareOneBadRequest(t *testing.T) {
	t.Parallel()
	c := &crowd{Doorway: &bed.Doorway{Arrived: make(chan struct{})}, sent: new(sent)}
	c.Limiter = bed.NewGated(t, bed.Latin1(t, bed.OneConnection, c.Guard, c.sent.trace), limiter.Config{})
	errs := c.behind(charges(t, c.Limiter, bucket, "first", "a", "b", "not in Latin-1: 猫", "z")...)
	for i, err := range errs {
		if bad := i == 3; bad != errors.Is(err, limiter.ErrInvalid) || !bad && err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	c.sent.expect(t, 1, 4, 1, 1, 1, 1)
	expectLevels(t, c.Limiter, map[string]float64{"first": 1, "a": 1, "b": 1, "z": 1})
}

// TestShareALockedRow: a row that another transaction has locked delays its own request only,
// which has its answer once the row is free.
func TestShareALockedRow(t *testing.T) {
	t.Parallel()
	url := bed.NewDatabase(t)
	c, business := newCrowd(t, url, limiter.Config{Timeout: 20 * time.Second}, func(cfg *pgxpool.Config) { cfg.MaxConns = 2 }), bed.Connect(t, url)
	for _, verb := range []string{"Charge", "Refund", "Undo", "Reserve", "Block", "Unblock"} {
		tx := bed.Begin(t, business, pgx.TxOptions{})
		key := "held by " + verb
		granted := bed.Must(t)(c.AllowN(t.Context(), bucket, key, 5))
		if err := c.Block(t.Context(), bucket, key, time.Microsecond); err != nil { // Unblock locks only a row with a block
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "UPDATE pglimit_token_bucket SET policy = policy WHERE key = $1", key); err != nil {
			t.Fatal(err)
		}
		var others atomic.Int64
		all := charges(t, c.Limiter, bucket, "first", "a", "z")
		for i, f := range all {
			all[i] = func() error {
				defer others.Add(1)
				return f()
			}
		}
		locked := func() (err error) {
			switch verb {
			case "Charge":
				_, err = c.Charge(t.Context(), bucket, key, 1)
			case "Refund":
				_, err = c.Refund(t.Context(), bucket, key, 1)
			case "Undo":
				_, err = c.Undo(t.Context(), bucket, key, granted)
			case "Reserve":
				_, err = c.Reserve(t.Context(), bucket.Request(key, 1), time.Hour)
			case "Block":
				err = c.Block(t.Context(), bucket, key, time.Minute)
			case "Unblock":
				err = c.Unblock(t.Context(), bucket, key)
			}
			return err
		}
		committed := make(chan error, 1)
		go func() {
			bed.Eventually(t, "the others have their answers", func(context.Context) (bool, error) { return others.Load() == 3, nil })
			committed <- tx.Commit(context.Background())
		}()
		if err := errors.Join(append(c.behind(append(all, locked)...), <-committed)...); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
		if sent := c.sent.take(); len(sent) < 4 || sent[1] != 3 {
			t.Errorf("%s: sent %v statements together", verb, sent)
		}
	}
	expectLevels(t, c.Limiter, map[string]float64{"a": 6, "z": 6, "held by Charge": 6, "held by Refund": 4, "held by Undo": 0, "held by Reserve": 6})
}

// TestShareAnAdmissionBefore: of the requests that share a transaction, one whose idempotency
// key was admitted before gets that answer, and counts nothing. So does one that was admitted
// in the same transaction, or whose earlier reservation has expired.
func TestShareAnAdmissionBefore(t *testing.T) {
	t.Parallel()
	clock := new(conformance.Clock)
	clock.Set(1_000_000_000_000)
	c := newCrowd(t, bed.NewDatabase(t), limiter.Config{Now: clock.Now, IdempotencyTTL: time.Hour})
	request := func(key, id string) limiter.Request {
		return limiter.Request{Policy: bucket, Key: key, Cost: 2, IdempotencyKey: id}
	}
	bed.Must(t)(c.Do(t.Context(), request("k", "before")))
	bed.Reserve(t, c.Limiter, request("k", "expired"), time.Second)
	clock.Set(1_000_000_000_000 + 2_000_000)
	var replayed atomic.Int64
	all := charges(t, c.Limiter, bucket, "first")
	for _, id := range []string{"before", "new", "expired", "new", "before"} {
		all = append(all, func() error {
			r, err := c.Do(t.Context(), request("k", id))
			if err == nil && !r.Allowed {
				err = fmt.Errorf("%s: %+v", id, r)
			}
			if r.Replayed {
				replayed.Add(1)
			}
			return err
		})
	}
	all = append(all, charges(t, c.Limiter, bucket, "k")...)
	if err := errors.Join(c.behind(all...)...); err != nil {
		t.Error(err)
	}
	if sent := c.sent.take(); sent[1] != 6 || replayed.Load() != 3 {
		t.Errorf("%d were replayed; sent %v statements together", replayed.Load(), sent)
	}
	expectLevels(t, c.Limiter, map[string]float64{"first": 1, "k": 2 + 2 + 2 + 1})
}

// TestShareInOtherIsolation: in a database whose transactions are serializable by default,
// requests that conflict share transactions at read committed.
func TestShareInOtherIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"repeatable read", "serializable"} {
		url := bed.NewDatabase(t)
		var sent sent
		var wg sync.WaitGroup
		var ls []*limiter.Limiter
		for range 2 {
			pool := bed.Connect(t, url, bed.FourConnections, bed.Setting("default_transaction_isolation", isolation), sent.trace)
			ls = append(ls, bed.NewLimiter(t, pool, nil))
		}
		for i := range 64 {
			wg.Go(func() {
				for j := range 10 {
					bed.Must(t)(ls[i%2].Charge(t.Context(), bucket, fmt.Sprint(j%2), 1))
				}
			})
		}
		wg.Wait()
		expectLevels(t, ls[0], map[string]float64{"0": 320, "1": 320})
		if n := len(sent.take()); n > 600 {
			t.Errorf("%s: %d round trips for 640 requests", isolation, n)
		}
	}
}

// TestShareNothing: without batching and over database/sql each request has a transaction of
// its own.
func TestShareNothing(t *testing.T) {
	t.Parallel()
	log := bed.NewCommitLog(t)
	c := newCrowd(t, log.URL, limiter.Config{DisableBatching: true})
	if err := errors.Join(c.behind(charges(t, c.Limiter, bucket, "a", "b", "c")...)...); err != nil {
		t.Error(err)
	}
	c.sent.expect(t, 1, 1, 1)
	db := bed.ConnectSQL(t, "pgx", log.URL)
	db.SetMaxOpenConns(1)
	l := bed.NewSQL(t, db, nil)
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() { bed.Must(t)(l.Charge(t.Context(), bucket, "d", 1)) })
	}
	wg.Wait()
	if n := bed.Value[int](t, log.Pool, "SELECT count(DISTINCT xid) FROM committed"); n != 43 {
		t.Errorf("%d transactions", n)
	}
}

// TestShareWithoutPreparing: the modes of pgx that prepare nothing have pipelines too.
func TestShareWithoutPreparing(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		log := bed.NewCommitLog(t)
		c := newCrowd(t, log.URL, limiter.Config{}, func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = mode })
		if err := errors.Join(c.behind(charges(t, c.Limiter, bucket, "a", "b", "c", "d", "d")...)...); err != nil {
			t.Errorf("%v: %v", mode, err)
		}
		if n := bed.Value[int](t, log.Pool, "SELECT count(DISTINCT xid) FROM committed"); n != 2 {
			t.Errorf("%v: %d transactions", mode, n)
		}
		expectLevels(t, c.Limiter, map[string]float64{"a": 1, "b": 1, "c": 1, "d": 2})
	}
}

// TestShareInLockOrder: transactions of several processes that lock the same rows, those of
// AllowAll and Allow among them, do not deadlock.
func TestShareInLockOrder(t *testing.T) {
	t.Parallel()
	url := bed.NewDatabase(t)
	var ls []*limiter.Limiter
	var sent sent
	for range 3 {
		// The server looks for deadlocks before a wait for a lock ends.
		pool := bed.Connect(t, url, bed.FourConnections, bed.Setting("deadlock_timeout", "1ms"), sent.trace)
		ls = append(ls, bed.NewLimiter(t, pool, nil))
	}
	other := bucket
	other.Algorithm = limiter.GCRA
	policies := []limiter.Policy{bucket, other}
	rounds := bed.Size(30, 200)
	var wg sync.WaitGroup
	for i := range 96 {
		wg.Go(func() {
			l := ls[i%3]
			for j := range rounds {
				a, b := policies[(i+j)%2].Request(fmt.Sprint((i*7+j*3)%40), 1), policies[(i+j+1)%2].Request(fmt.Sprint((i*5+j*11)%40), 1)
				switch i % 12 {
				case 0:
					if _, err := l.AllowAll(t.Context(), a, b); err != nil {
						t.Error(err)
					}
				case 1:
					bed.Must(t)(l.Do(t.Context(), a))
				default:
					bed.Must(t)(l.Charge(t.Context(), a.Policy, a.Key, 1))
				}
			}
		})
	}
	wg.Wait()
	if sent.deadlocks > 0 {
		t.Errorf("%d deadlocks", sent.deadlocks)
	}
	if n := slices.Max(sent.take()); n < 3 {
		t.Errorf("at most %d statements were sent together", n)
	}
}
