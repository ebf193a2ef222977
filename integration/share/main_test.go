// Package share tests requests that share statements and transactions, rows that other
// transactions have locked, and what one caller's neighbours can do to it, over a real
// PostgreSQL server.
package share

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testworld.Main(m, 4) }

// bucket has a limit that a test does not reach. Its period is so long that nothing leaks
// during a test, however slow the machine is.
var bucket = limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 1000, Period: 100 * 365 * 24 * time.Hour}

// callers call a limiter at once, through a gate. Business transactions lock rows meanwhile, and
// sent has the statements that reached the server.
type callers struct {
	*testworld.Gate
	business *pgxpool.Pool
	sent     *testworld.Trace
}

// newCallers creates callers over the database at url, with one connection unless changes say
// otherwise.
func newCallers(t *testing.T, url string, config limiter.Config, changes ...func(*pgxpool.Config)) *callers {
	t.Helper()
	c := &callers{business: testworld.Connect(t, url), sent: new(testworld.Trace)}
	c.Gate = testworld.NewGate(t, url, config, append([]func(*pgxpool.Config){testworld.OneConnection, c.sent.On}, changes...)...)
	return c
}

// ask is one request.
type ask = func() (limiter.Result, error)

// behind sends requests while the gate is shut, each once the one before it waits, and
// opens it. The first is sent alone, and the others wait behind it.
func (c *callers) behind(asks ...ask) (all []testworld.Answer) {
	c.Shut()
	var answers []<-chan testworld.Answer
	for _, f := range asks {
		answers = append(answers, c.Send(f))
	}
	c.sent.Take()
	c.Reopen()
	for _, a := range answers {
		all = append(all, <-a)
	}
	return all
}

// expectAnswers sends requests as behind does, and expects no error.
func (c *callers) expectAnswers(t *testing.T, asks []ask) {
	t.Helper()
	for i, got := range c.behind(asks...) {
		if got.Err != nil {
			t.Errorf("request %d: %v", i, got.Err)
		}
	}
}

// charges returns requests that charge one unit to each key.
func charges(t *testing.T, l *limiter.Limiter, p limiter.Policy, keys ...string) (all []ask) {
	for _, k := range keys {
		all = append(all, func() (limiter.Result, error) { return l.Charge(t.Context(), p, k, 1) })
	}
	return all
}

// expectLevels fails the test unless the keys of a policy have these levels.
func expectLevels(t *testing.T, l *limiter.Limiter, p limiter.Policy, levels map[string]float64) {
	t.Helper()
	for k, want := range levels {
		if got := testworld.Level(t, l, p, k); !testworld.Near(got, want) {
			t.Errorf("the level of %s is %v, want %v", k, got, want)
		}
	}
}

// sizes returns how many statements were sent together, each time since the last Take.
func sizes(sent *testworld.Trace) (all []int) {
	for _, s := range sent.Take() {
		all = append(all, len(s))
	}
	return all
}

// expectSizes fails the test unless the numbers of statements sent together are want.
func (c *callers) expectSizes(t *testing.T, want ...int) {
	t.Helper()
	if got := sizes(c.sent); !slices.Equal(got, want) {
		t.Errorf("sent %v statements together, want %v", got, want)
	}
}

// update changes rows of a table in a transaction that stays open.
func update(t *testing.T, pool *pgxpool.Pool, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	tx := testworld.Begin(t, pool, pgx.TxOptions{})
	must.OK(tx.Exec(context.Background(), "UPDATE "+testworld.TableOf(p.Algorithm)+" SET policy = policy WHERE policy = $1 AND key = ANY ($2)", p.Name, keys))(t)
	return tx
}
