package denials

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/deniallog"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var (
	bites = limiter.Policy{Name: "bites", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour}
	ghost = limiter.Policy{Name: "ghost", Algorithm: limiter.TokenBucket, Limit: 10, Period: 1000 * time.Hour, Shadow: true}
)

// TestShadowDecidesAsMemory: over SQL as in memory, shadow policies and overrides let pass
// what would be denied, and count, block and report as if they were enforced, also in an
// AllowAll.
func TestShadowDecidesAsMemory(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	d := search.Draw{Equal: true, Shadows: true, Coarse: true, Operations: search.Without(search.Usual, "sweep", "begin", "reserve", "reserve_up_to", "settle", "cancel")}
	testworld.Search(t, d, 6, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Ways, s.Alike = search.By(testworld.NewLimiter(t, pool, config)), search.Rounded
			return s
		}
	})
}

// TestShadowTogether: concurrent requests of a policy and of its shadow under one name share
// statements. All of the shadow pass, and as many are counted as fit.
func TestShadowTogether(t *testing.T) {
	t.Parallel()
	own := ghost
	own.Name = bites.Name
	var mu sync.Mutex
	most := 0
	l := testworld.NewLimiter(t, testworld.NewPool(t), &limiter.Config{DisableDenyCache: true, Observe: func(_ context.Context, o limiter.Observation) {
		mu.Lock()
		defer mu.Unlock()
		most = max(most, o.Rows)
	}})
	const callers = 200
	var counted, passed [2]int
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			p := []limiter.Policy{bites, own}[i%2]
			r, err := l.Allow(t.Context(), p, "k")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if r.Allowed {
				passed[i%2]++
			}
			if r.Allowed && !r.Shadowed {
				counted[i%2]++
			}
		})
	}
	all.Wait()
	if counted[0]+counted[1] != 10 || passed[0] != counted[0] || passed[1] != callers/2 {
		t.Errorf("counted %v, passed %v", counted, passed)
	}
	if n := testworld.Level(t, l, bites, "k"); !testworld.Near(n, 10) {
		t.Errorf("level %v", n)
	}
	if most < 2 {
		t.Error("no request shared a statement, or its rows were not observed")
	}
}

// TestObserveRows: Observe reports how many requests the statement or transaction decided:
// 1 alone, 0 for a remembered denial, and in a transaction.
func TestObserveRows(t *testing.T) {
	t.Parallel()
	pool := testworld.NewPool(t)
	var seen []string
	l := testworld.NewLimiter(t, pool, &limiter.Config{DenyCacheTTL: time.Hour, Observe: func(_ context.Context, o limiter.Observation) {
		seen = append(seen, fmt.Sprint(o.Verb, " ", o.Rows))
		if o.Duration <= 0 || o.Duration > time.Minute || o.Err != nil {
			t.Errorf("%+v", o)
		}
	}})
	ctx := t.Context()
	for range 3 {
		testworld.Must(t)(l.AllowN(ctx, bites, "k", 6))
	}
	testworld.MustAll(t)(l.AllowAll(ctx, bites.Request("l", 1), ghost.Request("l", 1), bites.Request("l", 1)))
	h := must.OK(l.Reserve(ctx, bites.Request("m", 1), time.Hour))(t)
	testworld.Must(t)(l.Settle(ctx, h.ID, 1))
	must.Succeed(t, l.Reset(ctx, bites, "m"))
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	testworld.Must(t)(l.InTx(tx).Allow(ctx, bites, "tx"))
	testworld.Commit(t, tx)
	want := []string{"allow 1", "allow 1", "allow 0", "allow_all 2", "allow_all 1", "allow_all 2", "reserve 1", "settle 1", "reset 1", "allow 1"}
	if !slices.Equal(seen, want) {
		t.Errorf("observed %q, want %q", seen, want)
	}
}

// TestDenialLog: counts reach the table in slots of ten minutes, add up there over several
// flushes and processes, and survive an outage in memory.
func TestDenialLog(t *testing.T) {
	t.Parallel()
	url := testworld.NewDatabase(t)
	dialer := testworld.NewDialer(func() string { return url })
	pool := testworld.Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = dialer.Dial })
	steady := testworld.Connect(t, url)
	newLog := func(pool *pgxpool.Pool) *deniallog.Log {
		return must.OK(deniallog.New(pool, &deniallog.Config{Logger: slog.New(slog.DiscardHandler)}))(t)
	}
	first, second := newLog(pool), newLog(steady)
	deny := func(d *deniallog.Log, p limiter.Policy, key string, n int) {
		t.Helper()
		l := testworld.NewLimiter(t, steady, &limiter.Config{DenialLog: d})
		for range n {
			testworld.Must(t)(l.AllowN(t.Context(), p, key, 11))
		}
	}
	flush := func(d *deniallog.Log) {
		t.Helper()
		must.Succeed(t, d.Flush(t.Context()))
	}
	deny(first, bites, "a", 3)
	deny(first, ghost, "b", 2)
	flush(first)
	dialer.Down.Store(true)
	pool.Reset()
	deny(first, bites, "a", 4)
	if err := first.Flush(t.Context()); err == nil {
		t.Fatal("it was written while the database was away")
	}
	dialer.Down.Store(false)
	deny(second, bites, "a", 5)
	var both sync.WaitGroup
	both.Go(func() { flush(first) })
	both.Go(func() { flush(second) })
	both.Wait()
	type sum struct {
		Policy, Key, Algorithm string
		Denials, Shadowed      int64
		Units                  float64
		Slots, Late            bool
	}
	rows := must.OK(steady.Query(t.Context(), `
		SELECT policy, key, algorithm, sum(denials)::bigint, sum(shadowed)::bigint, sum(units), bool_and(slot_us % 60000000 = 0),
		       bool_or(abs(max_us - extract(epoch FROM clock_timestamp()) * 1e6) > 600e6)
		FROM (SELECT *, last_denied_at_us AS max_us FROM pglimit_denial) AS d GROUP BY policy, key, algorithm ORDER BY policy`))(t)
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sum])
	want := []sum{{"bites", "a", "token_bucket", 12, 0, 132, true, false}, {"ghost", "b", "token_bucket", 2, 2, 22, true, false}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
}

// TestDenialLogOfManyProcesses: several processes, over pgx and database/sql, add to the same rows at once, without
// deadlocks or losses.
func TestDenialLogOfManyProcesses(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	const keys, rounds = 300, 5
	var all sync.WaitGroup
	logs := []*deniallog.Log{must.OK(deniallog.New(pool, nil))(t)}
	for _, driver := range testworld.SQLDrivers {
		logs = append(logs, must.OK(deniallog.NewSQL(testworld.ConnectSQL(t, driver, address), nil))(t))
	}
	for _, d := range logs {
		l := limiter.NewMemory(&limiter.Config{DenialLog: d})
		all.Go(func() {
			for range rounds {
				for k := range keys {
					if _, err := l.AllowN(t.Context(), bites, fmt.Sprint(k), 11); err != nil {
						t.Error(err)
					}
				}
				if err := d.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if n := testworld.Value[int](t, pool, `SELECT sum(denials)::int FROM pglimit_denial`); n != len(logs)*keys*rounds {
		t.Errorf("%d denials in the table, want %d", n, len(logs)*keys*rounds)
	}
}
