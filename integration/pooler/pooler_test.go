package pooler

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

// limit is what a key may use in these tests. Its period is longer than a test.
const limit = 500

var failsOpen = limiter.Policy{Name: "open", Algorithm: limiter.TokenBucket, Limit: limit, Period: 100_000 * time.Hour, OnError: limiter.FailOpen}

// flood sends requests of several clients for one key until n have an answer, with
// several verbs. It returns the units allowed, those allowed without a decision, and the
// requests that failed with ErrMisconfigured.
func flood(t *testing.T, p limiter.Policy, n int, clients ...*limiter.Limiter) (allowed, degraded, refused int64) {
	t.Helper()
	var passed, open, failed, sent atomic.Int64
	var all sync.WaitGroup
	for i := range 4 * len(clients) {
		l := clients[i%len(clients)]
		all.Go(func() {
			for sent.Add(1) <= int64(n) {
				var r limiter.Result
				var err error
				switch sent.Load() % 3 {
				case 0:
					other := p // in another table, now and then
					if sent.Load()%2 == 0 {
						other.Algorithm = limiter.GCRA
					}
					var both limiter.Results
					both, err = l.AllowAll(t.Context(), p.Request("k", 1), other.Request("other", 1e-3))
					if err == nil {
						r = both.PerRequest[0]
						r.Allowed = both.Allowed
					}
				default:
					r, err = l.AllowN(t.Context(), p, "k", 1)
				}
				switch {
				case errors.Is(err, limiter.ErrMisconfigured), errors.Is(err, limiter.ErrInvalid) && p.Name == "pq":
					failed.Add(1)
				case err != nil:
					t.Error(err)
				case r.Allowed:
					passed.Add(1)
					if r.Source == limiter.SourceDegraded {
						open.Add(1)
					}
				}
			}
		})
	}
	all.Wait()
	return passed.Load(), open.Load(), failed.Load()
}

// TestPoolerSQL: over database/sql a limit behind PgBouncer in transaction mode is exact, with
// FailOpen too: with pgx, and with lib/pq if it sends parameters with their statement.
func TestPoolerSQL(t *testing.T) {
	testworld.OverDrivers(t, func(t *testing.T, driver string) {
		pooled := startPgBouncer(t, testworld.NewDatabase(t), 3)
		if driver == "postgres" {
			pooled += "&binary_parameters=yes"
		}
		var logged testworld.Buffer
		allowed, degraded, refused := flood(t, failsOpen, 3*limit, overSQL(t, driver, pooled, 4, &logged)...)
		if allowed-degraded > limit || allowed < limit || !late(degraded, &logged) || refused != 0 {
			t.Errorf("allowed %d of %d, %d without a decision, %d refused; logged %s", allowed, limit, degraded, refused, &logged)
		}
	})
}

// TestPoolerPQ: by default lib/pq sends the parameters of an unnamed statement in a second
// transaction, where they can meet another client's statement. Then nothing passes
// without a decision.
func TestPoolerPQ(t *testing.T) {
	t.Parallel()
	pooled := startPgBouncer(t, testworld.NewDatabase(t), 3)
	p := failsOpen
	p.Name = "pq"
	var logged testworld.Buffer
	_, degraded, refused := flood(t, p, limit, overSQL(t, "postgres", pooled, 4, &logged)...)
	if !late(degraded, &logged) || refused == 0 {
		t.Errorf("%d without a decision, %d refused; logged %s", degraded, refused, &logged)
	}
}

// late reports whether all that passed without a decision had no answer within Config.Timeout:
// FailOpen lets them pass, whether they count or not. What the pooler loses is another cause.
func late(degraded int64, logged *testworld.Buffer) bool {
	return degraded == 0 || logged.Count("fails open") == logged.Count("Config.Timeout is")
}

// overSQL returns n limiters over database/sql, each with its own connections.
func overSQL(t *testing.T, driver, address string, n int, logged *testworld.Buffer) (all []*limiter.Limiter) {
	t.Helper()
	for range n {
		db := testworld.ConnectSQL(t, driver, address)
		db.SetMaxOpenConns(4)
		all = append(all, testworld.NewSQL(t, db, &limiter.Config{DisableDenyCache: true, Logger: slog.New(slog.NewTextHandler(logged, nil))}))
	}
	return all
}

// TestPoolerInTx: in the caller's transaction a lost statement has failed the
// transaction, and the error says so. Over a pgx pool the next transaction works.
func TestPoolerInTx(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pooled := startPgBouncer(t, testworld.NewDatabase(t), 1)
	// Both prepare the statement under the same name, on the same connection.
	other := testworld.Connect(t, pooled)
	testworld.Must(t)(testworld.InTxOf(t, other, testworld.NewLimiter(t, other, nil), func(tx *limiter.Tx) (limiter.Result, error) {
		return tx.Allow(ctx, failsOpen, "k")
	}))
	pool := testworld.Connect(t, pooled)
	l := testworld.NewLimiter(t, pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	allow := func() (limiter.Result, error) {
		tx := must.OK(pool.Begin(ctx))(t)
		defer tx.Rollback(ctx)
		r, err := l.InTx(tx).Allow(ctx, failsOpen, "k")
		if err == nil {
			err = tx.Commit(ctx)
		}
		return r, err
	}
	r, err := allow()
	if !errors.Is(err, limiter.ErrMisconfigured) || r.Allowed || !strings.Contains(err.Error(), "the transaction has failed") || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
		t.Errorf("first: %+v, %v", r, err)
	}
	if r, err := allow(); err != nil || !r.Allowed || !testworld.Near(r.Level, 2) {
		t.Errorf("again: %+v, %v", r, err)
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	all, err := l.InTx(tx).AllowAll(ctx, failsOpen.Request("a", 1), failsOpen.Request("b", 1))
	if err != nil || !all.Allowed {
		t.Errorf("AllowAll: %+v, %v", all, err)
	}
}

// TestPoolerSearchPath: PgBouncer refuses a search_path in the URL. One of the role in the
// database does instead.
func TestPoolerSearchPath(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	owner := testworld.Connect(t, address)
	testworld.Exec(t, owner, "CREATE SCHEMA limits")
	must.Succeed(t, migrations.Up(t.Context(), testworld.Connect(t, testworld.WithSearchPath(t, address, "limits"))))
	testworld.Exec(t, owner, "ALTER ROLE CURRENT_USER IN DATABASE "+testworld.Value[string](t, owner, "SELECT quote_ident(current_database())")+" SET search_path = limits")
	l := testworld.NewLimiter(t, testworld.Connect(t, startPgBouncer(t, address, 1)), nil)
	testworld.Must(t)(l.Allow(t.Context(), failsOpen, "k"))
	if n := testworld.Value[int](t, owner, "SELECT count(*) FROM limits.pglimit_token_bucket"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

// TestPoolerRefuses: what PgBouncer itself refuses is no outage either.
func TestPoolerRefuses(t *testing.T) {
	t.Parallel()
	pooled := startPgBouncer(t, testworld.NewDatabase(t), 1)
	for name, change := range map[string]func(string) string{
		"wrong password":        func(u string) string { return strings.Replace(u, testworld.BouncerPassword, "wrong", 1) },
		"unknown user":          func(u string) string { return strings.Replace(u, testworld.BouncerUser, "nobody", 1) },
		"unknown database":      func(u string) string { return strings.Replace(u, "?", "_none?", 1) },
		"no such database":      func(u string) string { return u[:strings.LastIndex(u, "/")] + "/" + nowhere + "?sslmode=disable" },
		"unsupported parameter": func(u string) string { return u + "&search_path=limits" },
	} {
		l := testworld.NewLimiter(t, testworld.Connect(t, change(pooled)), &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
		for range 5 {
			if r, err := l.Allow(t.Context(), failsOpen, "k"); !errors.Is(err, limiter.ErrMisconfigured) || r.Allowed {
				t.Errorf("%s: %+v, %v", name, r, err)
			}
		}
	}
}
