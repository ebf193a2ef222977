package riverlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/riverlimit"
)

// at is the time in the examples, so that their output is the same each time.
var at = &limiter.Config{Now: func() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) }}

func ExampleNew() {
	l := limiter.NewMemory(at) // limiter.New(pool, nil) shares limits between processes
	perTenant := limiter.Policy{Name: "reports", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Hour, Burst: 2}
	limit := riverlimit.New(l, func(_ context.Context, job *rivertype.JobRow) ([]limiter.Request, error) {
		var args struct{ Tenant string }
		err := json.Unmarshal(job.EncodedArgs, &args)
		return []limiter.Request{perTenant.Request(args.Tenant, 1)}, err
	})
	for id := range int64(3) { // River calls Work: put limit into river.Config.Middleware
		job := &rivertype.JobRow{ID: id, Attempt: 1, Kind: "report", EncodedArgs: []byte(`{"tenant":"blue"}`)}
		fmt.Println(limit.Work(context.Background(), job, func(context.Context) error { return nil }))
	}
	// Output:
	// <nil>
	// <nil>
	// JobSnoozeError: 1m0s
}

func ExampleSlots() {
	l := limiter.NewMemory(nil)
	exports := limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}
	limit := riverlimit.Slots(l, func(_ context.Context, job *rivertype.JobRow) (limiter.Request, error) {
		return exports.Request(job.Kind, 1), nil
	})
	job := &rivertype.JobRow{Kind: "export"}
	err := limit.Work(context.Background(), job, func(ctx context.Context) error {
		fmt.Println(limit.Work(ctx, job, func(context.Context) error { return nil })) // meanwhile, on another worker
		return nil
	})
	fmt.Println(err)
	// Output:
	// JobSnoozeError: 5s
	// <nil>
}

func ExampleEach() {
	perQueue := func(job *rivertype.JobRow) (string, error) { return job.Queue, nil }
	limits := riverlimit.Each(perQueue, limiter.PerMinute("jobs", 100), limiter.PerHour("jobs-hourly", 1000))
	requests, _ := limits(context.Background(), &rivertype.JobRow{Queue: "mail"})
	for _, r := range requests {
		fmt.Println(r.Policy.Name, r.Key, r.Cost)
	}
	// Output:
	// jobs mail 1
	// jobs-hourly mail 1
}

func ExampleKind() {
	fmt.Println(riverlimit.Kind(&rivertype.JobRow{Kind: "report"}))
	// Output: report <nil>
}
