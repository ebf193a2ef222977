package roles

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// TestStrangersInSearch draws random histories of the SQL functions and the library with all
// planted objects in the search_path: a planted operator or function fails its statement.
func TestStrangersInSearch(t *testing.T) {
	t.Parallel()
	address, _ := testworld.PlantedDatabase(t)
	pool := testworld.Connect(t, address)
	t.Run("by numbers", func(t *testing.T) {
		t.Parallel()
		testworld.SearchFunctions(t, search.Draw{Operations: search.Ordinary}, 3, testworld.Functions{Q: pool}, search.Variants(10, 10*time.Second)...)
	})
	t.Run("attempts", func(t *testing.T) {
		t.Parallel()
		d := search.Draw{Operations: search.Without(search.Attempts, "begin", "commit", "rollback", "sweep"), Shadows: true}
		p := limiter.Policy{Name: "attempts", Algorithm: limiter.Attempts, Limit: 1, Period: 10 * time.Second, BlockFor: time.Second}
		testworld.SearchFunctions(t, d, 10, testworld.Functions{Q: pool}, p)
		d.Names = 1
		testworld.SearchFunctions(t, d, 10, testworld.Functions{Q: pool, ByName: true}, p)
	})
	t.Run("slots", func(t *testing.T) {
		t.Parallel()
		d := search.Draw{Operations: search.Without(search.Slots, "begin", "commit", "rollback", "sweep")}
		p := limiter.Policy{Name: "slots", Algorithm: limiter.Concurrency, Limit: 1, Period: 10 * time.Second}
		testworld.SearchFunctions(t, d, 10, testworld.Functions{Q: pool}, p)
	})
	t.Run("by name", func(t *testing.T) {
		t.Parallel()
		d := search.Draw{Operations: search.Ordinary + " any any split split override override override override", Shadows: true, Names: 1}
		testworld.SearchFunctions(t, d, 3, testworld.Functions{Q: pool, ByName: true})
	})
}

// TestStrangersInVerbs calls what those histories leave out: the functions for askers, views,
// a window with the caller's end, waits, transactions and a sweep.
func TestStrangersInVerbs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	address, _ := testworld.PlantedDatabase(t)
	pool := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, pool, nil)
	var calls []string
	for _, p := range testworld.Variants(10, 10*time.Second) {
		p.Name = "asked-" + p.Name
		testworld.StorePolicy(t, pool, p, true)
		for _, call := range []string{`allow('%s', 'k', 2)`, `allow('%s', 'k', 9)`, `allow_up_to('%s', 'k', 99)`, `check('%s', 'k')`, `charge('%s', 'k')`} {
			calls = append(calls, `SELECT pglimit_ask.`+fmt.Sprintf(call, p.Name))
		}
		if p.Algorithm != limiter.LeakyBucketQueue {
			for _, end := range []string{`settle(r.reservation, 1)`, `cancel(r.reservation)`} {
				calls = append(calls, fmt.Sprintf(`SELECT pglimit_ask.%s FROM pglimit_ask.reserve('%s', 'r', 2, 60) AS r`, end, p.Name), fmt.Sprintf(`SELECT pglimit_ask.%s FROM pglimit_ask.reserve_up_to('%s', 'u', 99, 60) AS r`, end, p.Name))
			}
		}
		if p.Algorithm != limiter.LeakyBucketQueue {
			for _, call := range []string{
				`SELECT pglimit.settle_all(r.reservations, '{1}') FROM pglimit.reserve_all('{%[1]s}', '{several}', ttl_s => 60, idempotency_key => 'x') AS r`,
				`SELECT pglimit.cancel_all(r.reservations) FROM pglimit.reserve_all('{%[1]s,%[1]s}', '{c,d}', ttl_s => 60) AS r`,
				`SELECT pglimit.allow_all('{%[1]s}', '{once}', idempotency_key => 'y')`, `SELECT pglimit.allow_any('{%[1]s}', '{any}', 3, split => true, idempotency_key => 'z')`,
			} {
				call = fmt.Sprintf(call, p.Name)
				calls = append(calls, call, call) // the second is answered by the first
			}
		}
		calls = append(calls, `SELECT * FROM `+testworld.TableOf(p.Algorithm)+`_now`)
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := l.InTx(tx).AllowAll(ctx, p.Request("a", 1), p.Request("b", 1)); err != nil {
				return err
			}
			if p.Algorithm != limiter.LeakyBucketQueue {
				if _, err := l.InTx(tx).AllowAnySplit(ctx, p.Request("c", 4), p.Request("d", 4)); err != nil {
					return err
				}
			}
			_, err := l.InTx(tx).Do(ctx, limiter.Request{Policy: p, Key: "once", Cost: 1, IdempotencyKey: "order 7"})
			return err
		})
		if err != nil && p.Algorithm != limiter.LeakyBucketQueue {
			t.Errorf("%s in a transaction: %v", testworld.Variant(p), err)
		}
	}
	for _, call := range append(calls, `SELECT * FROM pglimit_keys`,
		`SELECT pglimit.fixed_window('p', 'until', limit_units => 10, ends_at => clock_timestamp() OPERATOR(pg_catalog.+) interval '1 day')`) {
		if _, err := pool.Exec(ctx, call); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
	queue := limiter.Policy{Name: "queue", Algorithm: limiter.LeakyBucketQueue, Limit: 10, Period: time.Second}
	ended, end := context.WithCancel(ctx)
	end()
	if err := errors.Join(l.Wait(ctx, queue, "k", 0.001), l.Wait(ended, queue, "k", 1)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	j := testworld.NewJanitor(t, pool, &janitor.Config{Now: func() time.Time { return time.Now().Add(1000 * time.Hour) }})
	if r, err := j.Sweep(ctx); err != nil || r.Total() == 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestStrangersInPolicies changes policies and overrides with all planted objects in the
// search_path. The triggers' functions run too, with each branch that a change can reach.
func TestStrangersInPolicies(t *testing.T) {
	t.Parallel()
	address, _ := testworld.PlantedDatabase(t)
	pool := testworld.Connect(t, address)
	p := must.OK(policies.Open(t.Context(), pool, &policies.Config{PollEvery: time.Hour}))(t)
	defer p.Close()
	limit, shadow := 5.0, true
	month := limiter.Policy{Name: "month", Algorithm: limiter.FixedWindow, Limit: 10, Calendar: limiter.Month, TimeZone: "Europe/Vienna"}
	bucket := limiter.Policy{Name: "bucket", Algorithm: limiter.LeakyBucket, Limit: 10, Period: time.Second, Burst: 20, Tick: time.Second, BlockFor: time.Second}
	edit := policies.Edit{
		Set: []policies.Stored{{Policy: month}, {Policy: bucket}},
		SetOverrides: []policies.Override{
			{Policy: "month", Key: "k", Limit: &limit, Shadow: &shadow, Until: time.Now().Add(time.Hour)}, {Policy: "month", Key: "free", Unlimited: true},
		},
	}
	for range 2 { // new, and as they are
		must.OK(p.Apply(t.Context(), edit))(t)
	}
	edit.Set[0].Limit, edit.SetOverrides[0].Note = 11, "changed"
	if v, err := p.Apply(t.Context(), edit); err != nil || v != 2 {
		t.Errorf("version %d, %v", v, err)
	}
	testworld.Exec(t, pool, `UPDATE pglimit_policy SET name = 'renamed', limit_units = 12 WHERE name = 'month'`)
	testworld.Exec(t, pool, `UPDATE pglimit_override SET key = 'l', burst = 3 WHERE key = 'k'`)
	if _, err := p.Apply(t.Context(), policies.Edit{Delete: []string{"bucket"}, DeleteOverrides: []policies.Override{{Policy: "month", Key: "l"}}, Note: "over"}); err != nil {
		t.Error(err)
	}
	if _, _, err := p.At(t.Context(), "month", "k", time.Now().Add(-time.Hour)); err != nil {
		t.Error(err)
	}
	if h, err := p.History(t.Context(), "month", 100); err != nil || len(h) < 8 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestStrangersInDoctor runs every check with all planted objects in the search_path, as a
// role that owns the tables and as one that may only log in. None of the objects is used.
func TestStrangersInDoctor(t *testing.T) {
	t.Parallel()
	address, aside := testworld.PlantedDatabase(t)
	owner := testworld.Connect(t, address)
	l := testworld.NewLimiter(t, owner, nil)
	for _, p := range testworld.Variants(10, time.Minute) {
		testworld.Must(t)(l.Allow(t.Context(), p, "k"))
	}
	testworld.Reserve(t, l, limiter.Policy{Name: "r", Algorithm: limiter.GCRA, Limit: 10, Period: time.Minute}.Request("k", 1), time.Hour)
	role := testworld.WithSearchPath(t, testworld.RuntimeRole(t, aside), "public")
	for _, url := range []string{address, role} {
		report := must.OK(doctor.Run(t.Context(), testworld.Connect(t, url), nil))(t)
		for _, c := range report.Checks {
			text := c.Message + c.Fix + strings.Join(c.Details, " ")
			if strings.Contains(text, "stranger") || strings.Contains(c.NextStep, "correct the error") {
				t.Errorf("%+v", c)
			}
		}
	}
}
