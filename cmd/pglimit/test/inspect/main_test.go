// Package inspect tests package internal/inspect and the view pglimit_keys over a real
// PostgreSQL server.
package inspect

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// policy returns a policy of 10 units whose period is longer than a test.
func policy(name string, a limiter.Algorithm) limiter.Policy {
	return limiter.Policy{Name: name, Algorithm: a, Limit: 10, Period: 1000 * time.Hour}
}

// everyTable returns such a policy of each table, named as the algorithm.
func everyTable() (all []limiter.Policy) {
	for _, a := range algorithm.Tables {
		all = append(all, policy(string(a), limiter.Algorithm(a)))
	}
	return all
}

// use makes a row of a key.
func use(t *testing.T, l *limiter.Limiter, p limiter.Policy, keys ...string) {
	t.Helper()
	for _, key := range keys {
		testworld.Must(t)(l.Charge(t.Context(), p, key, 4))
	}
}

// exact and prefix select keys.
func exact(key string) inspect.Keys  { return inspect.Keys{Text: key} }
func prefix(key string) inspect.Keys { return inspect.Keys{Text: key, Prefix: true} }

// targets lists rows, and fails the test on an error.
func targets(t *testing.T, i *inspect.Inspector, k inspect.Keys, f inspect.Filter) []inspect.Target {
	t.Helper()
	all := must.OK(i.Targets(t.Context(), k, f, 10_000, false))(t)
	return all
}

// render renders counts as "policy algorithm 2; …".
func render(counts []inspect.Count) string {
	var all []string
	for _, c := range counts {
		text := fmt.Sprintf("%s %s %d", c.Policy, c.Algorithm, c.Rows)
		for name, n := range map[string]int64{"reservations": c.Reservations, "denials": c.Denials, "overrides": c.Overrides, "history": c.History} {
			if n > 0 {
				text += fmt.Sprintf(" %s %d", name, n)
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// tracer keeps the statements that read limits, with their arguments.
type tracer struct {
	mu  sync.Mutex
	all []pgx.TraceQueryStartData
}

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.Contains(d.SQL, "pglimit_") {
		r.mu.Lock()
		r.all = append(r.all, d)
		r.mu.Unlock()
	}
	return ctx
}

func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns the statements since the last call.
func (r *tracer) take() []pgx.TraceQueryStartData {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

// traced connects with a tracer.
func traced(t *testing.T, address string) (*pgxpool.Pool, *tracer) {
	r := new(tracer)
	return testworld.Connect(t, address, func(c *pgxpool.Config) { c.ConnConfig.Tracer = r }), r
}

// plan explains a statement, where a sequential scan is the last resort.
func plan(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	defer tx.Rollback(context.Background())
	must.OK(tx.Exec(t.Context(), `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off`))(t)
	rows := must.OK(tx.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) "+sql, args...))(t)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%v: %s", err, sql)
	}
	return strings.Join(lines, "\n")
}

// many fills a table with rows of several policies, and analyses it.
func many(t *testing.T, pool *pgxpool.Pool, a algorithm.Name, policies, keys int) {
	t.Helper()
	for n := range policies {
		testworld.InsertRows(t, pool, testworld.TableOf(a), fmt.Sprintf("filler-%d", n), keys, time.Now().UnixMicro())
	}
	testworld.Exec(t, pool, "ANALYZE "+testworld.TableOf(a))
}
