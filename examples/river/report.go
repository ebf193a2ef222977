package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/pglimit/pglimit/limiter"
)

// Report is a job that writes a report for a tenant.
type Report struct {
	Tenant string `json:"tenant"`
}

// Kind is how River names the job.
func (Report) Kind() string { return "report" }

// reports limits a tenant's reports.
var reports = limiter.Policy{Name: "reports", Algorithm: limiter.FixedWindow, Limit: 2, Period: 24 * time.Hour}

// writer works the jobs of kind report.
type writer struct {
	river.WorkerDefaults[Report]
	pool   *pgxpool.Pool
	limits *limiter.Limiter
}

// Work writes the report, ends the job and counts it in one transaction. However often
// River retries, a report is counted once, and a denied report is never written.
func (w *writer) Work(ctx context.Context, job *river.Job[Report]) error {
	tx, err := w.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // no effect after Commit
	if _, err := tx.Exec(ctx, `INSERT INTO reports (tenant) VALUES ($1)`, job.Args.Tenant); err != nil {
		return err
	}
	if _, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job); err != nil {
		return err
	}
	// The limit comes last: the tenant's row stays locked until the commit.
	r, err := w.limits.InTx(tx).Allow(ctx, reports, job.Args.Tenant)
	switch {
	case err != nil:
		return err
	case !r.Allowed:
		return river.JobSnooze(r.RetryAfter)
	}
	return tx.Commit(ctx)
}
