package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

func TestMain(m *testing.M) { testdb.Main(m, migrate) }

// process is one process of the application.
type process struct {
	pool   *pgxpool.Pool
	limits *limiter.Limiter
	client *river.Client[pgx.Tx]
	events <-chan *river.Event
}

// newProcess creates a process that does not work yet, and subscribes to events of the
// kinds.
func newProcess(t *testing.T, url string, config *limiter.Config, rates map[string]limiter.Policy, workers int, kinds ...river.EventKind) *process {
	t.Helper()
	var p process
	var err error
	if p.pool, err = pgxpool.New(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pool.Close)
	if config == nil {
		config = &limiter.Config{}
	}
	config.Timeout = time.Minute // many wait for few connections
	if p.limits, err = limiter.New(p.pool, config); err != nil {
		t.Fatal(err)
	}
	if p.client, err = newClient(p.pool, p.limits, rates, workers); err != nil {
		t.Fatal(err)
	}
	events, unsubscribe := p.client.Subscribe(kinds...)
	t.Cleanup(unsubscribe)
	p.events = events
	return &p
}

// insert queues n equal jobs.
func (p *process) insert(t *testing.T, n int, job river.JobArgs) {
	t.Helper()
	jobs := make([]river.InsertManyParams, n)
	for i := range jobs {
		jobs[i].Args = job
	}
	if _, err := p.client.InsertMany(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
}

// start lets the process work until the test ends.
func (p *process) start(t *testing.T) {
	t.Helper()
	if err := p.client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Cancels the jobs that still wait for their turn.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute) // prevents a hang
		defer cancel()
		if err := p.client.StopAndCancel(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}

// await returns the jobs of the next n events.
func await(t *testing.T, events <-chan *river.Event, n int) (jobs []*rivertype.JobRow, kinds []river.EventKind) {
	t.Helper()
	hang := time.NewTimer(time.Minute) // prevents a hang
	defer hang.Stop()
	for len(jobs) < n {
		select {
		case e := <-events:
			jobs, kinds = append(jobs, e.Job), append(kinds, e.Kind)
		case <-hang.C:
			t.Fatalf("waited for %d events, and there were %d: %v", n, len(jobs), kinds)
		}
	}
	return jobs, kinds
}

// one returns the single value of a query.
func one[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// count returns the number of a tenant's rows in a table.
func (p *process) count(t *testing.T, table, tenant string) int {
	t.Helper()
	return one[int](t, p.pool, `SELECT count(*) FROM `+table+` WHERE tenant = $1`, tenant)
}
