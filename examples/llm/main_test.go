package main

import (
	"context"
	"io"
	"iter"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func TestMain(m *testing.M) { testdb.Main(m, migrations.Up) }

// clock stands at noon until the test moves it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, time.March, 15, 12, 0, 0, 0, time.UTC)} }

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func (c *clock) config() *limiter.Config {
	return &limiter.Config{Timeout: time.Minute, Now: func() time.Time {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.now
	}}
}

// newProcess connects to a database as one process does. It applies each change to the
// pool's configuration first.
func newProcess(t *testing.T, url string, c *clock, model Model, changes ...func(*pgxpool.Config)) *service {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	limits, err := limiter.New(pool, c.config())
	if err != nil {
		t.Fatal(err)
	}
	return &service{limits, model}
}

// bounded returns the test's context with a timeout, to prevent a hang.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// uses returns a model that uses that many tokens, one chunk after the other, and then
// fails if err is not nil. Between two chunks it calls pause.
func uses(err error, pause func(ctx context.Context, used int), chunks ...int) Model {
	return func(ctx context.Context, _ string, _ int) iter.Seq2[Chunk, error] {
		return func(yield func(Chunk, error) bool) {
			used := 0
			for _, n := range chunks {
				used += n
				if !yield(Chunk{"word ", used}, nil) {
					return
				}
				if pause != nil {
					pause(ctx, used)
				}
			}
			if err != nil {
				yield(Chunk{}, err)
			}
		}
	}
}

// want checks a tenant's usage.
func (s *service) want(t *testing.T, tenant string, spent, held float64) {
	t.Helper()
	st, err := s.limits.Usage(context.WithoutCancel(t.Context()), budget, tenant)
	if left := max(0, budget.Limit-spent-held); err != nil || st.Spent != spent || st.Reserved != held || st.Remaining != left {
		t.Errorf("%s: spent %v, held %v, left %v (%v); want %v, %v, %v", tenant, st.Spent, st.Reserved, st.Remaining, err, spent, held, left)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	url := testdb.Empty.New(t)
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // and again, on the tables and rows of the first run
		var out strings.Builder
		if err := run(t.Context(), url, newClock().config(), &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(readme), "```\n"+out.String()+"```\n") {
			t.Errorf("README.md does not show what the program prints:\n%s", &out)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	t.Parallel()
	if err := run(t.Context(), "", nil, io.Discard); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("without DATABASE_URL: %v", err)
	}
}
