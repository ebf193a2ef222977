package share

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// TestShareOneTransaction: requests of all verbs that wait commit together, with their
// durability, and have the results of the order in which they arrived.
func TestShareOneTransaction(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	log := testworld.NewCommitLog(t)
	clock := new(conformance.Clock)
	for _, session := range []string{"on", "off"} {
		c := newCallers(t, log.URL, limiter.Config{Now: clock.Now}, testworld.Setting("synchronous_commit", session))
		for _, durability := range testworld.Durabilities {
			for _, p := range testworld.Holdable() {
				p.Name, p.Limit, p.Period, p.Durability = fmt.Sprintf("%s-%s-%s", p.Name, session, durability), 100, 1000*time.Hour, durability
				granted := testworld.Must(t)(c.AllowN(ctx, p, "k", 8))
				reserve := func(units float64) ask {
					return func() (limiter.Result, error) {
						h, err := c.Reserve(ctx, p.Request("k", units), time.Hour)
						return h.Result, err
					}
				}
				upTo := func(units float64) ask {
					return func() (limiter.Result, error) {
						h, err := c.ReserveUpTo(ctx, p.Request("k", units), time.Hour)
						return h.Result, err
					}
				}
				steps := []struct {
					ask   ask
					level float64 // after it; -1: it returns none
				}{
					{func() (limiter.Result, error) { return c.Charge(ctx, p, "k", 20) }, 28},
					{func() (limiter.Result, error) { return c.Refund(ctx, p, "k", 3) }, 25},
					{func() (limiter.Result, error) { return c.Undo(ctx, p, "k", granted) }, 17},
					{reserve(5), 22},
					{func() (limiter.Result, error) {
						return c.Do(ctx, limiter.Request{Policy: p, Key: "k", Cost: 7, IdempotencyKey: "id"})
					}, 29},
					{reserve(80), 29}, // denied
					{func() (limiter.Result, error) { return limiter.Result{}, c.Block(ctx, p, "k", time.Minute) }, -1},
					{reserve(1), 29}, // denied
					{func() (limiter.Result, error) { return limiter.Result{}, c.Unblock(ctx, p, "k") }, -1},
					{func() (limiter.Result, error) { return c.Charge(ctx, p, "k", 1) }, 30},
					{upTo(5), 35},
					{upTo(95), 100}, // what is left
				}
				asks := charges(t, c.Limiter, p, "first")
				for _, s := range steps {
					asks = append(asks, s.ask)
				}
				for i, got := range c.behind(asks...)[1:] {
					want := steps[i].level
					if got.Err != nil || want >= 0 && (!testworld.Near(got.Level, want) || (i == 5 || i == 7) == got.Allowed) {
						t.Errorf("%s: result %d is %+v, %v, want the level %v", p.Name, i, got.Result, got.Err, want)
					}
				}
				// The denials look for expired reservations.
				if sent := sizes(c.sent); sent[0] != 1 || sent[1] != 12 {
					t.Errorf("%s: sent %v statements together", p.Name, sent)
				}
				if n := testworld.Value[int](t, log.Pool, `SELECT count(DISTINCT xid) FROM committed WHERE policy = $1 AND key = 'k'`, p.Name); n != 2 {
					t.Errorf("%s: %d transactions", p.Name, n)
				}
				if n := testworld.Value[int](t, log.Pool, `SELECT count(*) FROM committed WHERE policy = $1 AND setting <> $2`, p.Name, testworld.CommittedWith(session, durability)); n != 0 {
					t.Errorf("%s: %d changes with another durability", p.Name, n)
				}
			}
		}
	}
}

// TestShareInOtherIsolation: in a database whose transactions are serializable by default,
// requests that conflict share transactions at read committed.
func TestShareInOtherIsolation(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	for _, isolation := range []string{"repeatable read", "serializable"} {
		p := bucket
		p.Name = isolation[:6]
		var sent testworld.Trace
		var wg sync.WaitGroup
		var ls []*limiter.Limiter
		for range 2 {
			pool := testworld.Connect(t, url, testworld.FourConnections, testworld.Setting("default_transaction_isolation", isolation), sent.On)
			ls = append(ls, testworld.NewLimiter(t, pool, nil))
		}
		for i := range 64 {
			wg.Go(func() {
				for j := range 10 {
					testworld.Must(t)(ls[i%2].Charge(t.Context(), p, fmt.Sprint(j%2), 1))
				}
			})
		}
		wg.Wait()
		expectLevels(t, ls[0], p, map[string]float64{"0": 320, "1": 320})
		if n := len(sent.Take()); n > 600 && !testworld.Citus() { // there each goes to its shard alone
			t.Errorf("%s: %d round trips for 640 requests", isolation, n)
		}
	}
}

// TestShareNothing: without batching and over database/sql each request has a transaction of
// its own.
func TestShareNothing(t *testing.T) {
	t.Parallel()
	log := testworld.NewCommitLog(t)
	c := newCallers(t, log.URL, limiter.Config{DisableBatching: true})
	c.expectAnswers(t, charges(t, c.Limiter, bucket, "a", "b", "c"))
	c.expectSizes(t, 1, 1, 1)
	db := testworld.ConnectSQL(t, "pgx", log.URL)
	db.SetMaxOpenConns(1)
	l := testworld.NewSQL(t, db, nil)
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() { testworld.Must(t)(l.Charge(t.Context(), bucket, "d", 1)) })
	}
	wg.Wait()
	if n := testworld.Value[int](t, log.Pool, "SELECT count(DISTINCT xid) FROM committed"); n != 43 {
		t.Errorf("%d transactions", n)
	}
}

// TestShareWithoutPreparing: the modes of pgx that prepare nothing have pipelines too.
func TestShareWithoutPreparing(t *testing.T) {
	t.Parallel()
	log := testworld.NewCommitLog(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec} {
		p := bucket
		p.Name = fmt.Sprint("mode-", int(mode))
		c := newCallers(t, log.URL, limiter.Config{}, func(config *pgxpool.Config) { config.ConnConfig.DefaultQueryExecMode = mode })
		c.expectAnswers(t, charges(t, c.Limiter, p, "a", "b", "c", "d", "d"))
		if n := testworld.Value[int](t, log.Pool, "SELECT count(DISTINCT xid) FROM committed WHERE policy = $1", p.Name); n != 2 {
			t.Errorf("%v: %d transactions", mode, n)
		}
		expectLevels(t, c.Limiter, p, map[string]float64{"a": 1, "b": 1, "c": 1, "d": 2})
	}
}

// TestShareALostAnswer: if the answer to a transaction that was committed is lost, all its
// requests get an error, and each was counted once.
func TestShareALostAnswer(t *testing.T) {
	t.Parallel()
	w := testworld.NewWire(t, testworld.NewDatabase(t))
	c := newCallers(t, w.URL, limiter.Config{})
	c.sent.Before = func(sent testworld.Sent) {
		if len(sent) == 3 {
			w.LoseAnswer("INSERT 0 1")
		}
	}
	c.lose(t, charges(t, c.Limiter, bucket, "first", "a", "b", "b"))
	expectLevels(t, c.Limiter, bucket, map[string]float64{"first": 1, "a": 1, "b": 2})
}

// lose expects an answer to the first request only, and that none is sent again.
func (c *callers) lose(t *testing.T, asks []ask) {
	t.Helper()
	for i, got := range c.behind(asks...) {
		if (i > 0) != errors.Is(got.Err, limiter.ErrUnavailable) || i == 0 && got.Err != nil {
			t.Errorf("request %d: %v", i, got.Err)
		}
	}
	c.expectSizes(t, 1, len(asks)-1)
}
