package share

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// TestHeldRowCostsItsCallersOnly: a transaction holds a row, and more callers want it than
// the pool has connections. Meanwhile the callers of other keys get all their answers, for
// every verb, and those of the row get theirs when it is free.
func TestHeldRowCostsItsCallersOnly(t *testing.T) {
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.FourConnections)
	business := testworld.Connect(t, pool.Config().ConnString())
	for i, verb := range verbNames {
		t.Run(verb, func(t *testing.T) {
			l, p := testworld.NewLimiter(t, pool, nil), unlimited
			defer func() { must.Succeed(t, l.Close()) }()
			p.Name = fmt.Sprint("held-", i)
			call := verbs(l, p)[verb]
			testworld.Must(t)(call(t.Context(), "held"))
			row := p
			if verb == "Wait" {
				row.Algorithm = limiter.LeakyBucketQueue
			}
			testworld.Must(t)(l.Allow(t.Context(), row, "held"))
			if verb == "Unblock" { // it locks only a row that is blocked
				must.Succeed(t, l.Block(t.Context(), p, "held", time.Hour))
			}
			tx := update(t, business, row, "held")
			ctx, stop := context.WithCancel(context.Background())
			held := make(chan *score)
			go func() {
				held <- load(ctx, 12, 0, func(ctx context.Context, _ int) (limiter.Result, error) { return call(ctx, "held") })
			}()
			testworld.AwaitBlocked(t, business)
			others := answers(4, 20, func(ctx context.Context, i int) (limiter.Result, error) { return call(ctx, fmt.Sprint("other-", i)) })
			stop()
			must.Succeed(t, tx.Rollback(context.Background()))
			if s := <-held; s.failed() > 0 {
				t.Errorf("the callers of the row: %v", s)
			}
			if others.failed() > 0 {
				t.Errorf("the callers of other keys: %v", others)
			}
		})
	}
}

// TestHeldRowInTheOppositeOrder: a transaction has one of an AllowAll's rows and wants the
// other. The AllowAll gives way before the server looks for deadlocks, and then succeeds.
func TestHeldRowInTheOppositeOrder(t *testing.T) {
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	testworld.MustAll(t)(l.AllowAll(t.Context(), unlimited.Request("a", 1), unlimited.Request("b", 1)))
	for i := range 5 {
		tx := update(t, pool, unlimited, "b")
		answer := make(chan error, 1)
		go func() {
			all, err := l.AllowAll(t.Context(), unlimited.Request("a", 1), unlimited.Request("b", 1))
			if err == nil && !all.Allowed {
				err = fmt.Errorf("%+v", all)
			}
			answer <- err
		}()
		testworld.AwaitBlocked(t, pool)
		if _, err := tx.Exec(t.Context(), "UPDATE pglimit_token_bucket SET policy = policy WHERE key = 'a'"); err != nil {
			t.Errorf("the transaction, round %d: %v", i, err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("the transaction, round %d: %v", i, err)
		}
		if err := <-answer; err != nil {
			t.Errorf("AllowAll, round %d: %v", i, err)
		}
	}
}

// usedPool is a pool whose connections the application can use all at once.
type usedPool struct {
	open func(limiter.Config) *limiter.Limiter
	use  func() (release func())
}

// answered opens a limiter whose first request has an answer in its Timeout, the shortest of
// twice, four times… config's: after a late one a full pool could be that of an outage.
func (u usedPool) answered(t *testing.T, config limiter.Config) *limiter.Limiter {
	t.Helper()
	for {
		l := u.open(config)
		if r, err := l.Check(t.Context(), unlimited, "first", 0); err == nil {
			return l
		} else if config.Timeout *= 2; config.Timeout > time.Minute {
			t.Fatalf("%+v, %v", r, err)
		}
		must.Succeed(t, l.Close())
	}
}

// pools returns a pool of each kind, each with connections to url.
func pools(t *testing.T, url string, connections int) map[string]usedPool {
	pool, db := testworld.Connect(t, url, testworld.Connections(int32(connections))), testworld.ConnectSQL(t, "pgx", url)
	db.SetMaxOpenConns(connections)
	all := func(take func() func()) func() func() {
		return func() func() {
			var releases []func()
			for range connections {
				releases = append(releases, take())
			}
			return func() {
				for _, release := range releases {
					release()
				}
			}
		}
	}
	return map[string]usedPool{
		"pgx": {func(c limiter.Config) *limiter.Limiter { return testworld.NewLimiter(t, pool, &c) }, all(func() func() { return must.OK(pool.Acquire(t.Context()))(t).Release })},
		"database/sql": {func(c limiter.Config) *limiter.Limiter { return testworld.NewSQL(t, db, &c) }, all(func() func() {
			conn := must.OK(db.Conn(t.Context()))(t)
			return func() { _ = conn.Close() }
		})},
	}
}

// TestBusyPoolSendsNothingLater: ErrOverloaded says that nothing was consumed. So a request
// that waited for a connection of the pool is not sent once one comes free, although the
// time of the caller's own statement may not be over. FailOpen does not apply.
func TestBusyPoolSendsNothingLater(t *testing.T) {
	t.Parallel()
	const timeout, requests = 200 * time.Millisecond, 4
	url := testworld.NewDatabase(t)
	reader := testworld.NewLimiter(t, testworld.Connect(t, url), nil)
	p := bucket
	p.OnError = limiter.FailOpen
	for name, c := range pools(t, url, 2) {
		for _, verb := range []string{"Charge", "Allow"} {
			l, key := c.answered(t, limiter.Config{Timeout: timeout}), limiter.JoinKey(name, verb)
			call := verbs(l, p)[verb]
			release := c.use()
			errs := make(chan error)
			send := func() {
				for range requests {
					go func() { _, err := call(t.Context(), key); errs <- err }()
				}
			}
			send()
			<-time.After(timeout / 2)
			send() // their statements begin when those of the first have waited in vain
			unknown := 0
			for range 2 * requests {
				if err := testworld.Receive(t, errs, "an answer"); err == nil {
					t.Errorf("%s: %s was answered without a connection", name, verb)
				} else if !errors.Is(err, limiter.ErrOverloaded) {
					unknown++
				}
			}
			release()
			must.Succeed(t, l.Close()) // waits for all that is still sent
			if level := testworld.Level(t, reader, p, key); level > float64(unknown)+1e-3 {
				t.Errorf("%s: %s consumed %v units, and only %d of its errors left that open", name, verb, level, unknown)
			}
		}
	}
}

// TestExhaustedPoolOpensNothing: the application uses all connections of the pool. That is
// an overload: no policy fails open, and the circuit breaker stays closed. Of callers that
// share a statement, those that leave first get an error that leaves open whether it is sent.
func TestExhaustedPoolOpensNothing(t *testing.T) {
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour, OnError: limiter.FailOpen}
	for name, c := range pools(t, testworld.NewDatabase(t), 4) {
		l := c.answered(t, limiter.Config{Timeout: time.Second, BreakAfter: 1})
		release := c.use()
		var all sync.WaitGroup
		for verb, call := range verbs(l, p) {
			all.Go(func() {
				r, err := call(t.Context(), verb)
				if r.Allowed || !errors.Is(err, limiter.ErrOverloaded) && !errors.Is(err, store.ErrExhausted) {
					t.Errorf("%s, %s: %+v, %v", name, verb, r, err)
				}
			})
		}
		all.Wait()
		if r, err := l.Allow(t.Context(), p, "k"); !errors.Is(err, limiter.ErrOverloaded) { // an open breaker would let it pass
			t.Errorf("%s, after all of these: %+v, %v", name, r, err)
		}
		release()
		testworld.Eventually(t, name+": the database answers again", func(ctx context.Context) (bool, error) {
			r, _ := l.Allow(ctx, p, "k")
			return r.Source == limiter.SourceDatabase, nil
		})
	}
}
