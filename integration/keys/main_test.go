// Package keys tests bounds on the keys that have a row, over a real PostgreSQL server.
package keys

import (
	"database/sql"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/janitor"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// clock is one that the limiters and the janitor of a test share.
type clock struct{ us atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.us.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro())
	return c
}

func (c *clock) now() time.Time          { return time.UnixMicro(c.us.Load()) }
func (c *clock) forward(d time.Duration) { c.us.Add(d.Microseconds()) }

// world is a database whose keys are bounded, with what uses it.
type world struct {
	*testing.T
	*clock
	pool *pgxpool.Pool
	*limiter.Limiter
	janitor *janitor.Janitor
}

func newWorld(t *testing.T) *world {
	t.Parallel()
	w := &world{T: t, clock: newClock(), pool: testworld.NewPool(t)}
	w.Limiter = w.another()
	w.janitor = testworld.NewJanitor(t, w.pool, &janitor.Config{Now: w.now})
	return w
}

// another returns the limiter of another process.
func (w *world) another() *limiter.Limiter {
	return testworld.NewLimiter(w.T, w.pool, &limiter.Config{Now: w.now})
}

func (w *world) sweep() {
	w.Helper()
	must.OK(w.janitor.Sweep(w.Context()))(w.T)
}

// allow expects that a request for a key is answered with a reason; "" for a grant.
func (w *world) allow(l *limiter.Limiter, p limiter.Policy, key string, want limiter.Reason) limiter.Result {
	w.Helper()
	r := testworld.Must(w.T)(l.Allow(w.Context(), p, key))
	if r.Reason != want || r.Allowed != (want == "") {
		w.Errorf("the answer for %s is %v, want reason %q", key, r, want)
	}
	return r
}

// fill gives n keys a row.
func (w *world) fill(l *limiter.Limiter, p limiter.Policy, n int) {
	w.Helper()
	for i := range n {
		w.allow(l, p, fmt.Sprint("first", i), "")
	}
}

// expect fails the test unless a policy has rows rows and the count counted.
func (w *world) expect(p limiter.Policy, rows, counted int64) {
	w.Helper()
	if r, c := rowsAndCount(w.T, w.pool, p); r != rows || c != counted {
		w.Errorf("%d rows, and the count is %d; want %d and %d", r, c, rows, counted)
	}
}

// rowsAndCount reads both from one snapshot. The count is -1 if there is none.
func rowsAndCount(t *testing.T, pool *pgxpool.Pool, p limiter.Policy) (rows, count int64) {
	t.Helper()
	must.Succeed(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM `+testworld.TableOf(p.Algorithm)+` WHERE policy = $1 AND key <> ''),
		coalesce((SELECT keys FROM pglimit_key_count WHERE policy = $1 AND algorithm = $2), -1)`, p.Name, p.Algorithm).Scan(&rows, &count))
	return rows, count
}

func limiterOver(t *testing.T, over any) *limiter.Limiter {
	if pool, ok := over.(*pgxpool.Pool); ok {
		return testworld.NewLimiter(t, pool, nil)
	}
	return testworld.NewSQL(t, over.(*sql.DB), nil)
}
