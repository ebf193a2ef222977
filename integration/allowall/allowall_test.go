package allowall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestAllowAllDeniedConsumesNothing: a denial changes no level and starts only the block
// of the policy that denied. The caller's earlier work in the transaction still commits.
func TestAllowAllDeniedConsumesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	bed.Exec(t, pool, "CREATE TABLE orders (id text PRIMARY KEY)")
	l := bed.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	for _, inside := range []bool{false, true} {
		for _, blockFor := range []time.Duration{0, time.Hour} {
			for _, p := range bed.Variants(10, 1000*time.Hour) {
				p.BlockFor = blockFor
				t.Run(fmt.Sprintf("%s inside=%v block=%v", bed.Variant(p), inside, blockFor), func(t *testing.T) {
					t.Parallel()
					free, full := t.Name()+"free", t.Name()+"full"
					bed.Must(t)(l.AllowN(ctx, p, full, 6))
					requests := []limiter.Request{p.Request(full, 5), p.Request(free, 3), p.Request(full, 1)}
					var all limiter.Results
					if inside {
						tx := bed.Begin(t, pool, pgx.TxOptions{})
						if _, err := tx.Exec(ctx, "INSERT INTO orders VALUES ($1)", t.Name()); err != nil {
							t.Fatal(err)
						}
						all = bed.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...))
						bed.Commit(t, tx)
						if n := bed.Value[int](t, pool, "SELECT count(*) FROM orders WHERE id = $1", t.Name()); n != 1 {
							t.Error("the caller's order is gone")
						}
					} else {
						all = bed.MustAll(t)(l.AllowAll(ctx, requests...))
					}
					binding := 0
					if all.PerRequest[2].RetryAfter > all.PerRequest[0].RetryAfter {
						binding = 2
					}
					if all.Allowed || all.DeniedBy != binding || all.PerRequest[0].Allowed || !all.PerRequest[1].Allowed || all.PerRequest[2].Allowed {
						t.Errorf("got %+v", all)
					}
					for i, r := range all.PerRequest {
						if r.Granted != 0 || r.Allowed != (r.RetryAfter == 0) || r.Allowed != (r.Reason == "") {
							t.Errorf("requests[%d]: %+v", i, r)
						}
					}
					if r := bed.Must(t)(l.Check(ctx, p, free, 10)); !r.Allowed || r.Level != 0 {
						t.Errorf("free: %+v", r)
					}
					if r := bed.Must(t)(l.Check(ctx, p, full, 0)); !bed.Near(r.Level, 6) || r.Allowed != (blockFor == 0) {
						t.Errorf("full: %+v", r)
					}
				})
			}
		}
	}
}

// TestAllowAllBadInput: errors name the requests, and nothing is written. Nothing is
// written either if one request can never fit.
func TestAllowAllBadInput(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
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
		tx := bed.Begin(t, pool, pgx.TxOptions{})
		_, outside := l.AllowAll(ctx, c.asks...)
		_, inside := l.InTx(tx).AllowAll(ctx, c.asks...)
		for _, err := range []error{outside, inside} {
			if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an ErrInvalid with %q", err, c.want)
			}
		}
		bed.Commit(t, tx)
	}
	once := p.Request("k", 1)
	once.IdempotencyKey = "1"
	if _, err := l.AllowAll(ctx, once); !errors.Is(err, limiter.ErrUnsupported) {
		t.Errorf("with an idempotency key: %v", err)
	}
	// The same name and key under another algorithm is a different row.
	other := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: time.Hour}
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	requests := []limiter.Request{other.Request("k", 3), p.Request("k", 6), p.Request("k", 6), other.Request("l", 2)}
	for _, all := range []limiter.Results{bed.MustAll(t)(l.AllowAll(ctx, requests...)), bed.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...))} {
		if all.Allowed || all.DeniedBy != 2 || all.PerRequest[2].RetryAfter != limiter.Never || !all.PerRequest[0].Allowed || !all.PerRequest[1].Allowed {
			t.Errorf("a sum above the burst: %+v", all)
		}
	}
	bed.Commit(t, tx)
	for _, a := range limiter.Algorithms() {
		if n := bed.Value[int](t, pool, "SELECT count(*) FROM pglimit_"+string(a)); n != 0 {
			t.Errorf("%s: %d rows were written", a, n)
		}
	}
	if all := bed.MustAll(t)(l.AllowAll(ctx, requests[0], requests[1])); !all.Allowed {
		t.Errorf("two algorithms: %+v", all)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AllowAll(ctx, requests...); err != limiter.ErrClosed { // caused by no single request
		t.Errorf("closed: got %v", err)
	}
}

// TestAllowAllOfAThousand keys, the most that one call accepts: granted and denied.
func TestAllowAllOfAThousand(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := bed.NewPool(t)
	l := bed.NewLimiter(t, pool, nil)
	all := bed.Variants(2, 1000*time.Hour)
	var requests []limiter.Request
	for i := range 1000 {
		requests = append(requests, all[i%len(all)].Request(fmt.Sprint("key", i/len(all)), 2))
	}
	for _, want := range []bool{true, false} {
		if got := bed.MustAll(t)(l.AllowAll(ctx, requests...)); got.Allowed != want || want != (got.DeniedBy == -1) {
			t.Errorf("outside: %v, want %v", got.Allowed, want)
		}
		tx := bed.Begin(t, pool, pgx.TxOptions{})
		if got := bed.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...)); got.Allowed {
			t.Error("inside: allowed where nothing is left")
		}
		bed.Commit(t, tx)
	}
}

// TestAllowAllDurability: one setting applies to all requests and to the blocks that they
// start. It is Relaxed only if all policies are, also of what is taken at once. In a transaction the caller's setting
// applies.
func TestAllowAllDurability(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := bed.NewCommitLog(t)
	for _, session := range []string{"off", "on"} {
		l := bed.NewLimiter(t, bed.Connect(t, c.URL, bed.Setting("synchronous_commit", session)), nil)
		for _, all := range [][]limiter.Durability{{limiter.Relaxed, limiter.Relaxed}, {limiter.Relaxed, limiter.Durable}, {limiter.Durable, limiter.Relaxed}, {limiter.Durable, limiter.Durable}} {
			own := bed.CommittedWith(session, min(all[0], all[1])) // Durable is set for fewer
			for i := range 4 {                                     // outside and inside a transaction, of two tables and of one
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
					tx = bed.Begin(t, bed.Connect(t, c.URL, bed.Setting("synchronous_commit", session)), pgx.TxOptions{})
					request = l.InTx(tx).AllowAll
					want, changes = session, map[string]int{"a": 3, "b": 4, "c": 3, "d": 6, "e": 6} // locked, taken, locked; b: blocked
				}
				for range 3 { // outside, the last are taken at once
					bed.MustAll(t)(request(ctx, p.Request("d", 1), q.Request("e", 1)))
				}
				bed.MustAll(t)(request(ctx, p.Request("a", 1), p.Request("c", 1), q.Request("b", 10)))
				bed.MustAll(t)(request(ctx, p.Request("a", 1), p.Request("c", 1), q.Request("b", 10)))
				if inside {
					bed.Commit(t, tx)
				}
				c.Expect(t, p, want, changes)
			}
		}
	}
}

// TestAllowAllFailsOpen only if all its policies fail open, and never in a transaction.
func TestAllowAllFailsOpen(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var observed []string
	b := bed.NewBroken(t, limiter.Config{
		Logger: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, o limiter.Observation) {
			observed = append(observed, fmt.Sprint(o.Request.Key, " ", o.Result.Allowed, " ", o.Result.Granted, " ", o.Err != nil))
		},
	})
	bed.MustAll(t)(b.L.AllowAll(ctx, bed.FailsOpen.Request("a", 99), bed.FailsClosed.Request("b", 100)))
	bed.MustAll(t)(b.L.AllowAll(ctx, bed.FailsOpen.Request("a", 1), bed.FailsClosed.Request("b", 1)))
	tx := bed.Begin(t, b.Pool, pgx.TxOptions{})
	b.Cut()
	all := bed.MustAll(t)(b.L.AllowAll(ctx, bed.FailsOpen.Request("c", 2), bed.FailsOpen.Request("d", 3)))
	if !all.Allowed || all.DeniedBy != -1 || all.PerRequest[1].Granted != 3 || all.PerRequest[1].Source != limiter.SourceDegraded {
		t.Errorf("all fail open: %+v", all)
	}
	if all, err := b.L.AllowAll(ctx, bed.FailsOpen.Request("e", 1), bed.FailsClosed.Request("f", 1)); !errors.Is(err, limiter.ErrUnavailable) || all.Allowed {
		t.Errorf("one fails closed: %+v, %v", all, err)
	}
	if _, err := tx.Exec(ctx, "SELECT 1/0"); err == nil {
		t.Fatal("the transaction goes on")
	}
	if all, err := b.L.InTx(tx).AllowAll(ctx, bed.FailsOpen.Request("g", 1), bed.FailsOpen.Request("h", 1)); err == nil || all.Allowed {
		t.Errorf("inside: %+v, %v", all, err)
	}
	want := "a true 99 false, b true 100 false, a true 0 false, b false 0 false, c true 2 false, d true 3 false, e false 0 true, f false 0 true, g false 0 true, h false 0 true"
	if got := strings.Join(observed, ", "); got != want {
		t.Errorf("observed %s\nwant     %s", got, want)
	}
}

// TestAllowAllAndTheDenyCache: a remembered denial of one request denies the whole without
// a statement, and a denial by AllowAll is remembered for the request that denied.
func TestAllowAllAndTheDenyCache(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := bed.NewPool(t)
	l, other := bed.NewLimiter(t, pool, &limiter.Config{DenyCacheTTL: time.Hour}), bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	remembered := func(what string, all limiter.Results, deniedBy int, sources ...limiter.Source) {
		t.Helper()
		for i, r := range all.PerRequest {
			if all.Allowed || r.Allowed || all.DeniedBy != deniedBy || r.Source != sources[i] || r.Burst != 10 || r.Limit != 10 ||
				(r.Source == limiter.SourceCache) != (r.RetryAfter > 0 && r.Reason == limiter.ReasonLimit) {
				t.Errorf("%s: request %d: %+v", what, i, all)
			}
		}
	}
	bed.Must(t)(l.AllowN(ctx, p, "k", 10))
	bed.Must(t)(l.Allow(ctx, p, "k"))
	remembered("by Allow", bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 1), p.Request("k", 1))), 1, limiter.SourceSkipped, limiter.SourceCache)

	// By AllowAll, for the sum of two requests and more.
	bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 6), p.Request("n", 1), p.Request("l", 6)))
	if err := other.Reset(ctx, p, "l"); err != nil {
		t.Fatal(err)
	}
	remembered("by AllowAll, the sum", bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 10), p.Request("n", 1), p.Request("l", 2))), 2,
		limiter.SourceSkipped, limiter.SourceSkipped, limiter.SourceCache)
	if all := bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 9), p.Request("n", 10))); !all.Allowed {
		t.Errorf("less than was denied: %+v", all)
	}
	// l and n have room now only for what was not requested; the denial of l is for 12.
	if all := bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 1), p.Request("n", 1))); all.Allowed || !all.PerRequest[0].Allowed || all.DeniedBy != 1 || all.PerRequest[1].Source != limiter.SourceDatabase {
		t.Errorf("%+v", all)
	}
	remembered("by AllowAll, one", bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 1), p.Request("n", 1))), 1, limiter.SourceSkipped, limiter.SourceCache)

	// What gives units back forgets the denial.
	if err := l.Reset(ctx, p, "n"); err != nil {
		t.Fatal(err)
	}
	if all := bed.MustAll(t)(l.AllowAll(ctx, p.Request("l", 1), p.Request("n", 1))); !all.Allowed {
		t.Errorf("after Reset: %+v", all)
	}
	if _, err := l.AllowAll(ctx, p.Request("k", 1), p.Request("", -1)); !errors.Is(err, limiter.ErrInvalid) {
		t.Errorf("a remembered denial hid an invalid request: %v", err)
	}
}

// TestAllowAllConflicts: the limiter's own transactions succeed although the database's
// default isolation is stricter. In the caller's transaction the error names the next
// step.
func TestAllowAllConflicts(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := bed.NewCommitLog(t)
	pool := bed.Connect(t, c.URL, bed.Setting("default_transaction_isolation", "repeatable read"))
	l := bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 100, Period: 1000 * time.Hour, BlockFor: time.Hour, OnError: limiter.FailOpen}
	for _, cost := range []float64{60, 60} { // granted; then denied, and a block started
		bed.MustAll(t)(l.AllowAll(ctx, p.Request("a", cost), p.Request("b", 1)))
	}
	if got := bed.Value[string](t, c.Pool, "SELECT string_agg(key || ' ' || isolation, ', ' ORDER BY xid, key) FROM committed"); got !=
		"a read committed, b read committed, a read committed" {
		t.Errorf("committed: %s", got)
	}
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	if _, err := tx.Exec(ctx, "SELECT 1"); err != nil { // takes the snapshot
		t.Fatal(err)
	}
	bed.MustAll(t)(l.AllowAll(ctx, p.Request("c", 1), p.Request("d", 1)))
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
	pool := bed.NewPool(t)
	bed.Exec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.granted := 0;
		RETURN NEW;
	END $$`)
	bed.Exec(t, pool, `CREATE TRIGGER refuse BEFORE UPDATE ON pglimit_gcra FOR EACH ROW WHEN (NEW.granted > 0) EXECUTE FUNCTION refuse()`)
	l := bed.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: time.Hour}
	tx := bed.Begin(t, pool, pgx.TxOptions{})
	if all, err := l.InTx(tx).AllowAll(ctx, p.Request("a", 1), p.Request("b", 1)); !errors.Is(err, limiter.ErrRetryTx) || all.Allowed {
		t.Errorf("got %+v, %v", all, err)
	}
}
