package main

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/pglimit/pglimit/examples/internal/testdb"
	"github.com/pglimit/pglimit/limiter"
)

// TestNoTenantExceedsItsLimit: two processes work the jobs of three tenants at once. By
// the database's clock each tenant's webhooks leave one by one, at its rate.
func TestNoTenantExceedsItsLimit(t *testing.T) {
	t.Parallel()
	url := testdb.Migrated.New(t)
	perTenant := map[string]int{"red": 20, "green": 40, "blue": 80} // per second, and how many jobs
	rates := map[string]limiter.Policy{}
	for tenant, n := range perTenant {
		rates[tenant] = perSecond(float64(n))
	}
	var mu sync.Mutex
	turns := map[string][]time.Time{} // when each may leave
	config := &limiter.Config{Observe: func(_ context.Context, o limiter.Observation) {
		if o.Err == nil && o.Result.Allowed {
			mu.Lock()
			defer mu.Unlock()
			turns[o.Request.Key] = append(turns[o.Request.Key], o.Result.At.Add(o.Result.Delay))
		}
	}}
	a := newProcess(t, url, config, rates, 5, river.EventKindJobCompleted)
	b := newProcess(t, url, config, rates, 5, river.EventKindJobCompleted)
	jobs := 0
	for tenant, n := range perTenant {
		a.insert(t, n, Webhook{tenant})
		jobs += n
	}
	start := one[time.Time](t, a.pool, `SELECT clock_timestamp()`)
	a.start(t)
	b.start(t)
	both := make(chan *river.Event)
	for _, p := range []*process{a, b} {
		go func() {
			for {
				select {
				case e := <-p.events:
					both <- e
				case <-t.Context().Done():
					return
				}
			}
		}()
	}
	await(t, both, jobs)

	mu.Lock()
	defer mu.Unlock()
	for tenant, n := range perTenant {
		apart := time.Second / time.Duration(n)
		rows, err := a.pool.Query(t.Context(), `SELECT at FROM webhooks WHERE tenant = $1 ORDER BY at`, tenant)
		if err != nil {
			t.Fatal(err)
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[time.Time])
		if err != nil {
			t.Fatal(err)
		}
		turn := turns[tenant]
		slices.SortFunc(turn, time.Time.Compare)
		if len(left) < n || len(turn) < len(left) {
			t.Fatalf("%s: %d webhooks were sent, in %d turns; want %d", tenant, len(left), len(turn), n)
		}
		for i := range left {
			if earliest := start.Add(time.Duration(i) * apart); left[i].Before(earliest) {
				t.Errorf("%s: webhook %d left %v too early for the rate", tenant, i, earliest.Sub(left[i]))
			}
			if left[i].Before(turn[i]) {
				t.Errorf("%s: webhook %d left %v before its turn", tenant, i, turn[i].Sub(left[i]))
			}
			if i > 0 && turn[i].Sub(turn[i-1]) < apart-time.Microsecond { // At and Delay are cut to the microsecond
				t.Errorf("%s: turns %d and %d are %v apart, want %v", tenant, i-1, i, turn[i].Sub(turn[i-1]), apart)
			}
		}
	}
}

// TestABusyTenantHoldsUpNobody: two workers first see fifty jobs of a tenant that may have
// one an hour. The jobs of another tenant are still done.
func TestABusyTenantHoldsUpNobody(t *testing.T) {
	t.Parallel()
	rates := map[string]limiter.Policy{"busy": perSecond(1. / 3600), "quiet": perSecond(1000)}
	p := newProcess(t, testdb.Migrated.New(t), nil, rates, 2, river.EventKindJobCompleted, river.EventKindJobSnoozed)
	p.insert(t, 50, Webhook{"busy"})
	p.insert(t, 5, Webhook{"quiet"})
	p.start(t)
	jobs, kinds := await(t, p.events, 1+49+5)
	snoozed := 0
	for i, job := range jobs {
		if kinds[i] != river.EventKindJobSnoozed {
			continue
		}
		snoozed++
		if away := job.ScheduledAt.Sub(*job.AttemptedAt); away < 50*time.Minute || away > 70*time.Minute {
			t.Errorf("a job was snoozed for %v, want the hour until there is room", away)
		}
	}
	if busy, quiet := p.count(t, "webhooks", "busy"), p.count(t, "webhooks", "quiet"); busy != 1 || quiet != 5 || snoozed != 49 {
		t.Errorf("%d busy and %d quiet webhooks were sent and %d jobs snoozed, want 1, 5 and 49", busy, quiet, snoozed)
	}
}

func TestUnknownTenant(t *testing.T) {
	t.Parallel()
	p := newProcess(t, testdb.Migrated.New(t), nil, nil, 1, river.EventKindJobCancelled)
	p.insert(t, 1, Webhook{"nobody"})
	p.start(t)
	await(t, p.events, 1)
	if n := p.count(t, "webhooks", "nobody"); n != 0 {
		t.Errorf("%d webhooks were sent", n)
	}
}
