package allowall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAllBadInput: errors name the requests, and nothing is written. Nothing is
// written either if one request can never fit.
func TestAllowAllBadInput(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour, OnError: limiter.FailOpen, BlockFor: time.Hour}
	q := p
	q.Limit = 20
	many := slices.Repeat([]limiter.Request{p.Request("k", 1)}, 1001)
	for _, c := range []struct {
		asks []limiter.Request
		want string
	}{
		{nil, "requests none"},
		{many, "requests 1001"},
		{[]limiter.Request{p.Request("k", 1), p.Request("l", 0)}, "requests[1]: pglimit: invalid: cost 0"},
		{[]limiter.Request{p.Request("k", 1), p.Request("l", 1), p.Request("", 1)}, `requests[2]: pglimit: invalid: key ""`},
		{[]limiter.Request{{Key: "k", Cost: 1}}, "requests[0]: pglimit: invalid policy: Name"},
		{[]limiter.Request{p.Request("k", 1), q.Request("l", 1), q.Request("k", 1)}, `requests[0] and requests[2] are for the same key under two policies "p"`},
	} {
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		_, outside := l.AllowAll(ctx, c.asks...)
		_, inside := l.InTx(tx).AllowAll(ctx, c.asks...)
		for _, err := range []error{outside, inside} {
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an ErrInvalid with %q", err, c.want)
			}
		}
		testworld.Commit(t, tx)
	}
	once := p.Request("k", 1)
	once.IdempotencyKey = "1"
	if _, err := l.AllowAll(ctx, once, p.Request("l", 1)); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("with an idempotency key for one of two: %v", err)
	}
	// The same name and key under another algorithm is a different row.
	other := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: time.Hour}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	requests := []limiter.Request{other.Request("k", 3), p.Request("k", 6), p.Request("k", 6), other.Request("l", 2)}
	for _, all := range []limiter.Results{testworld.MustAll(t)(l.AllowAll(ctx, requests...)), testworld.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...))} {
		if all.Allowed || all.DeniedBy != 2 || all.PerRequest[2].RetryAfter != limiter.Never || !all.PerRequest[0].Allowed || !all.PerRequest[1].Allowed {
			t.Errorf("a sum above the burst: %+v", all)
		}
	}
	testworld.Commit(t, tx)
	for _, a := range algorithm.Tables {
		if n := testworld.Value[int](t, pool, "SELECT count(*) FROM pglimit_"+string(a)); n != 0 {
			t.Errorf("%s: %d rows were written", a, n)
		}
	}
	if all := testworld.MustAll(t)(l.AllowAll(ctx, requests[0], requests[1])); !all.Allowed {
		t.Errorf("two algorithms: %+v", all)
	}
	must.Succeed(t, l.Close())
	if _, err := l.AllowAll(ctx, requests...); err != limiter.ErrClosed { // caused by no single request
		t.Errorf("closed: got %v", err)
	}
}

// TestAllowAllOfAThousand keys, the most that one call accepts: granted and denied.
func TestAllowAllOfAThousand(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	l := testworld.NewLimiter(t, pool, nil)
	all := testworld.Variants(2, 1000*time.Hour)
	var requests []limiter.Request
	for i := range 1000 {
		requests = append(requests, all[i%len(all)].Request(fmt.Sprint("key", i/len(all)), 2))
	}
	for _, want := range []bool{true, false} {
		if got := testworld.MustAll(t)(l.AllowAll(ctx, requests...)); got.Allowed != want || want != (got.DeniedBy == -1) {
			t.Errorf("outside: %v, want %v", got.Allowed, want)
		}
		tx := testworld.Begin(t, pool, pgx.TxOptions{})
		if got := testworld.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...)); got.Allowed {
			t.Error("inside: allowed where nothing is left")
		}
		testworld.Commit(t, tx)
	}
}

// TestAllowAllDurability: one setting applies to all requests and to the blocks that they
// start. It is Relaxed only if all policies are, also of what is taken at once. In a transaction the caller's setting
// applies.
func TestAllowAllDurability(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := testworld.NewCommitLog(t)
	for _, session := range []string{"off", "on"} {
		l := testworld.NewLimiter(t, testworld.Connect(t, c.URL, testworld.Setting("synchronous_commit", session)), nil)
		for _, all := range [][]limiter.Durability{{limiter.Relaxed, limiter.Relaxed}, {limiter.Relaxed, limiter.Durable}, {limiter.Durable, limiter.Relaxed}, {limiter.Durable, limiter.Durable}} {
			own := testworld.CommittedWith(session, min(all[0], all[1])) // Durable is set for fewer
			for i := range 4 {                                           // outside and inside a transaction, of two tables and of one
				inside := i%2 == 1
				p := limiter.Policy{
					Name:      fmt.Sprintf("%s-%s-%s-%d", session, all[0], all[1], i),
					Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour, BlockFor: time.Hour, Durability: all[0],
				}
				q := p
				q.Durability = all[1]
				if i < 2 {
					q.Algorithm = limiter.FixedWindow
				}
				request := l.AllowAll
				var tx pgx.Tx
				want, changes := own, map[string]int{"a": 1, "b": 2, "c": 1, "d": 3, "e": 3} // b: taken, then blocked
				if inside {
					tx = testworld.Begin(t, testworld.Connect(t, c.URL, testworld.Setting("synchronous_commit", session)), pgx.TxOptions{})
					request = l.InTx(tx).AllowAll
					want, changes = session, map[string]int{"a": 3, "b": 4, "c": 3, "d": 6, "e": 6} // locked, taken, locked; b: blocked
				}
				for range 3 { // outside, the last are taken at once
					testworld.MustAll(t)(request(ctx, p.Request("d", 1), q.Request("e", 1)))
				}
				testworld.MustAll(t)(request(ctx, p.Request("a", 1), p.Request("c", 1), q.Request("b", 10)))
				testworld.MustAll(t)(request(ctx, p.Request("a", 1), p.Request("c", 1), q.Request("b", 10)))
				if inside {
					testworld.Commit(t, tx)
				}
				c.Expect(t, p, want, changes)
			}
		}
	}
}

// TestAllowAllConflicts: the limiter's own transactions succeed although the database's
// default isolation is stricter. In the caller's transaction the error names the next
// step.
func TestAllowAllConflicts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := testworld.NewCommitLog(t)
	pool := testworld.Connect(t, c.URL, testworld.Setting("default_transaction_isolation", "repeatable read"))
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 100, Period: 1000 * time.Hour, BlockFor: time.Hour, OnError: limiter.FailOpen}
	for _, cost := range []float64{60, 60} { // granted; then denied, and a block started
		testworld.MustAll(t)(l.AllowAll(ctx, p.Request("a", cost), p.Request("b", 1)))
	}
	if got := testworld.Value[string](t, c.Pool, "SELECT string_agg(key || ' ' || isolation, ', ' ORDER BY xid, key) FROM committed"); got !=
		"a read committed, b read committed, a read committed" {
		t.Errorf("committed: %s", got)
	}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	testworld.MustAll(t)(l.AllowAll(ctx, p.Request("c", 1), p.Request("d", 1)))
	_, err := l.InTx(tx).AllowAll(ctx, p.Request("c", 1), p.Request("d", 1))
	var pgErr *pgconn.PgError
	if !errors.Is(err, limiter.ErrRetryTx) || !errors.As(err, &pgErr) || pgErr.Code != "40001" {
		t.Errorf("got %v, want ErrRetryTx around 40001", err)
	}
}

// TestAllowAllSeesARowThatChanges: a request that fitted when its row was locked is denied
// if it no longer fits.
func TestAllowAllSeesARowThatChanges(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := testworld.NewPool(t)
	testworld.Exec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.granted := 0;
		RETURN NEW;
	END $$`)
	testworld.Exec(t, pool, `CREATE TRIGGER refuse BEFORE UPDATE ON pglimit_token_bucket FOR EACH ROW WHEN (NEW.granted > 0) EXECUTE FUNCTION refuse()`)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	if all, err := l.InTx(tx).AllowAll(ctx, p.Request("a", 1), p.Request("b", 1)); !errors.Is(err, limiter.ErrRetryTx) || all.Allowed {
		t.Errorf("got %+v, %v", all, err)
	}
}
