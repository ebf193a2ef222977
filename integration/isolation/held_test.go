package isolation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/limiter"
)

// TestHeldRowCostsItsCallersOnly: a transaction holds a row, and more callers want it than
// the pool has connections. Meanwhile the callers of other keys get all their answers, for
// every verb.
func TestHeldRowCostsItsCallersOnly(t *testing.T) {
	pool := bed.Connect(t, bed.NewDatabase(t), bed.FourConnections)
	business := bed.Connect(t, pool.Config().ConnString())
	for _, verb := range sorted(verbs(nil, bucket("names"))) {
		t.Run(verb, func(t *testing.T) {
			l, p := bed.NewLimiter(t, pool, nil), bucket("held by "+verb)
			defer func() { must.Succeed(t, l.Close()) }()
			p.Name = fmt.Sprintf("held-%d%c", len(verb), verb[1])
			call := verbs(l, p)[verb]
			// The row exists, and is updated by a transaction that does not end.
			if _, err := call(t.Context(), "held"); err != nil {
				t.Fatal(err)
			}
			exists, table := p, "pglimit_token_bucket"
			if verb == "Wait" {
				exists.Algorithm, table = limiter.LeakyBucketQueue, "pglimit_leaky_bucket_queue"
			}
			if _, err := l.Allow(t.Context(), exists, "held"); err != nil {
				t.Fatal(err)
			}
			if verb == "Unblock" { // it locks only a row that is blocked
				if err := l.Block(t.Context(), p, "held", time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			tx := bed.Begin(t, business, pgx.TxOptions{})
			if _, err := tx.Exec(t.Context(), "UPDATE "+table+" SET policy = policy WHERE key = 'held' AND policy = $1", p.Name); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			held := make(chan *score)
			go func() {
				held <- load(ctx, 12, 0, func(ctx context.Context, _ int) (limiter.Result, error) { return call(ctx, "held") })
			}()
			bed.Eventually(t, "a caller waits for the row", func(context.Context) (bool, error) {
				return bed.Value[int](t, business, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0, nil
			})
			others := answers(4, 20, func(ctx context.Context, i int) (limiter.Result, error) { return call(ctx, fmt.Sprint("other-", i)) })
			stop()
			if err := tx.Rollback(context.Background()); err != nil {
				t.Error(err)
			}
			<-held
			if others.failed() > 0 {
				t.Errorf("the callers of other keys: %v", others)
			}
		})
	}
}

// TestHeldRowOpensNothing: the callers of a held row under a policy that fails open get no
// more than the limit: a locked row is no outage.
func TestHeldRowOpensNothing(t *testing.T) {
	pool := bed.Connect(t, bed.NewDatabase(t), bed.FourConnections)
	business := bed.Connect(t, pool.Config().ConnString())
	l, err := limiter.New(pool, &limiter.Config{Timeout: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour, OnError: limiter.FailOpen}
	if _, err := l.Allow(t.Context(), p, "held"); err != nil {
		t.Fatal(err)
	}
	tx := bed.Begin(t, business, pgx.TxOptions{})
	if _, err := tx.Exec(t.Context(), "UPDATE pglimit_token_bucket SET policy = policy"); err != nil {
		t.Fatal(err)
	}
	all := verbs(l, p)
	names := []string{"Allow", "AllowUpTo", "Do, idempotent", "AllowAll"}
	s := during(time.Second, 24, 0, func(ctx context.Context, i int) (limiter.Result, error) { return all[names[i%len(names)]](ctx, "held") })
	if s.granted > 0 {
		t.Errorf("%v units passed while the row was held", s.granted)
	}
	t.Logf("%v", s)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestHeldRowInTheOppositeOrder: a transaction has one of an AllowAll's rows and wants the
// other. The AllowAll gives way before the server looks for deadlocks, and then succeeds.
func TestHeldRowInTheOppositeOrder(t *testing.T) {
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	business := bed.Connect(t, pool.Config().ConnString())
	p := bucket("p")
	for _, key := range []string{"a", "b"} {
		if _, err := l.Allow(t.Context(), p, key); err != nil {
			t.Fatal(err)
		}
	}
	const update = "UPDATE pglimit_token_bucket SET policy = policy WHERE key = $1"
	for i := range 5 {
		tx := bed.Begin(t, business, pgx.TxOptions{})
		if _, err := tx.Exec(t.Context(), update, "b"); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			all, err := l.AllowAll(t.Context(), p.Request("a", 1), p.Request("b", 1))
			if err == nil && !all.Allowed {
				err = fmt.Errorf("%+v", all)
			}
			answer <- err
		}()
		bed.Eventually(t, "the AllowAll waits for the row", func(context.Context) (bool, error) {
			return bed.Value[int](t, pool, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") > 0, nil
		})
		if _, err := tx.Exec(t.Context(), update, "a"); err != nil {
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

// TestBusyPoolSendsNothingLater: ErrOverloaded says that nothing was consumed. So a request
// that waited for a connection of the pool is not sent once one comes free, although the
// time of its own statement may not be over. FailOpen does not apply.
func TestBusyPoolSendsNothingLater(t *testing.T) {
	t.Parallel()
	const timeout, connections, requests = 200 * time.Millisecond, 2, 4
	config := &limiter.Config{Timeout: timeout}
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	url := bed.NewDatabase(t)
	reader := bed.NewLimiter(t, bed.Connect(t, url), nil)
	pool := bed.Connect(t, url, func(c *pgxpool.Config) { c.MaxConns = connections })
	db := bed.ConnectSQL(t, "pgx", url)
	db.SetMaxOpenConns(connections)
	for name, c := range map[string]struct {
		limiter func() *limiter.Limiter
		use     func() (done func())
	}{
		"pgx": {func() *limiter.Limiter { return bed.NewLimiter(t, pool, config) }, func() func() {
			return must.OK(pool.Acquire(t.Context()))(t).Release
		}},
		"database/sql": {func() *limiter.Limiter { return bed.NewSQL(t, db, config) }, func() func() {
			conn := must.OK(db.Conn(t.Context()))(t)
			return func() { _ = conn.Close() }
		}},
	} {
		for verb, call := range map[string]func(*limiter.Limiter, string) error{
			"Charge": func(l *limiter.Limiter, key string) error { _, err := l.Charge(t.Context(), p, key, 1); return err },
			"Allow":  func(l *limiter.Limiter, key string) error { _, err := l.Allow(t.Context(), p, key); return err },
		} {
			l, key := c.limiter(), limiter.JoinKey(name, verb)
			bed.Must(t)(l.Check(t.Context(), p, key, 0))
			var done []func()
			for range connections {
				done = append(done, c.use())
			}
			errs := make(chan error)
			send := func() {
				for range requests {
					go func() { errs <- call(l, key) }()
				}
			}
			send()
			<-time.After(timeout / 2)
			send() // their statements begin when those of the first have waited in vain
			unknown := 0
			for range 2 * requests {
				if err := bed.Receive(t, errs, "an answer"); err == nil {
					t.Errorf("%s: %s was answered without a connection", name, verb)
				} else if !errors.Is(err, limiter.ErrOverloaded) {
					unknown++
				}
			}
			for _, d := range done {
				d()
			}
			if err := l.Close(); err != nil { // waits for all that is still sent
				t.Error(err)
			}
			if level := bed.Level(t, reader, p, key); level > float64(unknown)+1e-3 {
				t.Errorf("%s: %s consumed %v units, and only %d of its errors left that open", name, verb, level, unknown)
			}
		}
	}
}

// TestCrowdedPoolOpensNothing: the application uses all connections of the pool. That is
// an overload: no policy fails open, and the circuit breaker stays closed. Of callers that
// share a statement, those that leave first get an error that leaves open whether it is sent.
func TestCrowdedPoolOpensNothing(t *testing.T) {
	address := bed.NewDatabase(t)
	pool, db := bed.Connect(t, address, bed.FourConnections), bed.ConnectSQL(t, "pgx", address)
	db.SetMaxOpenConns(4)
	config := &limiter.Config{Timeout: time.Second, BreakAfter: 1}
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour, OnError: limiter.FailOpen}
	for name, c := range map[string]struct {
		l   *limiter.Limiter
		use func() (done func())
	}{
		"pgx": {bed.NewLimiter(t, pool, config), func() func() {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return conn.Release
		}},
		"database/sql": {bed.NewSQL(t, db, config), func() func() {
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = conn.Close() }
		}},
	} {
		answered := func(ctx context.Context) (bool, error) {
			r, err := c.l.Allow(ctx, p, "k")
			return r.Source == limiter.SourceDatabase, err
		}
		bed.Eventually(t, name+": the database answers in time", answered)
		var done []func()
		for range 4 {
			done = append(done, c.use())
		}
		var all sync.WaitGroup
		for verb, call := range verbs(c.l, p) {
			all.Go(func() {
				r, err := call(t.Context(), verb)
				if r.Allowed || !errors.Is(err, limiter.ErrOverloaded) && !errors.Is(err, store.ErrExhausted) {
					t.Errorf("%s, %s: %+v, %v", name, verb, r, err)
				}
			})
		}
		all.Wait()
		if r, err := c.l.Allow(t.Context(), p, "k"); !errors.Is(err, limiter.ErrOverloaded) { // an open breaker would let it pass
			t.Errorf("%s, after all of these: %+v, %v", name, r, err)
		}
		for _, d := range done {
			d()
		}
		bed.Eventually(t, name+": the database answers again", answered)
	}
}
