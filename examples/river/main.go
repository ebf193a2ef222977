// Command river works the jobs of several tenants, each within its limits. webhook.go
// waits for a turn; report.go counts in the job's own transaction.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/migrations"
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, os.Getenv("DATABASE_URL")); err != nil {
		log.Fatal(err)
	}
}

// migrate creates River's tables, pglimit's and the application's.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	if err := migrations.Up(ctx, pool); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `
		CREATE TABLE IF NOT EXISTS webhooks (tenant text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
		CREATE TABLE IF NOT EXISTS reports  (tenant text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	return err
}

// newClient creates a River client whose workers share one Limiter.
func newClient(pool *pgxpool.Pool, l *limiter.Limiter, rates map[string]limiter.Policy, workers int) (*river.Client[pgx.Tx], error) {
	kinds := river.NewWorkers()
	river.AddWorker(kinds, &sender{pool: pool, limits: l, rates: rates})
	river.AddWorker(kinds, &writer{pool: pool, limits: l})
	return river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		Workers: kinds,
		// How soon River fetches a snoozed job: see patience.
		FetchPollInterval: 50 * time.Millisecond,
		FetchCooldown:     50 * time.Millisecond,
	})
}

// run inserts ten webhooks and three reports for each of two tenants, and works them.
func run(ctx context.Context, out io.Writer, url string) (err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate(ctx, pool); err != nil {
		return err
	}
	l, err := limiter.New(pool, nil)
	if err != nil {
		return err
	}
	rates := map[string]limiter.Policy{"blue": perSecond(20), "red": perSecond(50)}
	client, err := newClient(pool, l, rates, 10)
	if err != nil {
		return err
	}
	// An event means that the job's new state is committed.
	events, unsubscribe := client.Subscribe(river.EventKindJobCompleted, river.EventKindJobSnoozed)
	defer unsubscribe()
	if err := client.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Stop(context.WithoutCancel(ctx))) }()

	open := map[int64]string{} // the tenant of each job that is neither done nor snoozed for long
	for tenant := range rates {
		var jobs []river.InsertManyParams
		for range 10 {
			jobs = append(jobs, river.InsertManyParams{Args: Webhook{tenant}})
		}
		for range 3 {
			jobs = append(jobs, river.InsertManyParams{Args: Report{tenant}})
		}
		inserted, err := client.InsertMany(ctx, jobs)
		if err != nil {
			return err
		}
		for _, job := range inserted {
			open[job.Job.ID] = tenant
		}
	}
	type outcome struct {
		tenant, kind string
		event        river.EventKind
	}
	count := map[outcome]int{}
	for len(open) > 0 {
		select {
		case e := <-events:
			tenant, ok := open[e.Job.ID]
			if !ok || e.Kind == river.EventKindJobSnoozed && e.Job.Kind == (Webhook{}).Kind() {
				continue // it comes again soon
			}
			delete(open, e.Job.ID)
			count[outcome{tenant, e.Job.Kind, e.Kind}]++
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, tenant := range slices.Sorted(maps.Keys(rates)) {
		fmt.Fprintf(out, "%s: %d webhooks sent, %d reports written, %d put off to the next day\n", tenant,
			count[outcome{tenant, "webhook", river.EventKindJobCompleted}],
			count[outcome{tenant, "report", river.EventKindJobCompleted}],
			count[outcome{tenant, "report", river.EventKindJobSnoozed}])
	}
	return nil
}
