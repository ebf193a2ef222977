package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/pglimit/pglimit/limiter"
)

// Webhook is a job that calls a server of its tenant.
type Webhook struct {
	Tenant string `json:"tenant"`
}

// Kind is how River names the job.
func (Webhook) Kind() string { return "webhook" }

// patience bounds how long a job may occupy its worker while it waits for its turn. It
// must be longer than River takes to fetch a snoozed job again. Otherwise the queue runs
// empty meanwhile and the tenant gets less than its limit.
const patience = 250 * time.Millisecond

// perSecond spaces a tenant's webhooks out, n a second. The queue holds the one that
// leaves now and those that leave within patience; all others are snoozed.
func perSecond(n float64) limiter.Policy {
	return limiter.Policy{
		Name: "webhooks", Algorithm: limiter.LeakyBucketQueue,
		Limit: n, Period: time.Second, Burst: 1 + n*patience.Seconds(),
	}
}

// sender works the jobs of kind webhook.
type sender struct {
	river.WorkerDefaults[Webhook]
	pool   *pgxpool.Pool
	limits *limiter.Limiter
	rates  map[string]limiter.Policy // by tenant
}

// Work waits for the tenant's turn. If that is not soon, it snoozes the job, and the
// worker is free for others.
func (s *sender) Work(ctx context.Context, job *river.Job[Webhook]) error {
	tenant := job.Args.Tenant
	rate, ok := s.rates[tenant]
	if !ok {
		return river.JobCancel(errors.New("no such tenant: " + tenant))
	}
	err := s.limits.Wait(ctx, rate, tenant, 1)
	if denied, ok := errors.AsType[*limiter.DeniedError](err); ok {
		return river.JobSnooze(denied.Result.RetryAfter)
	}
	if err != nil {
		return err // River tries again later
	}
	return s.send(ctx, tenant)
}

// send would call the tenant's server. Here it records the time.
func (s *sender) send(ctx context.Context, tenant string) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO webhooks (tenant) VALUES ($1)`, tenant)
	return err
}
