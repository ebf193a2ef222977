package limiter_test

import (
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func ExampleLimiter_AllowAll() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	perUser := limiter.Policy{Name: "user", Algorithm: limiter.TokenBucket, Limit: 2, Period: time.Minute}
	perTenant := limiter.Policy{Name: "tenant", Algorithm: limiter.FixedWindow, Limit: 1000, Period: time.Hour}
	for range 3 {
		all, err := l.AllowAll(ctx, perTenant.Request("acme", 1), perUser.Request("alice", 1))
		if err != nil {
			fmt.Println(err)
			return
		}
		if all.Allowed {
			fmt.Println("allowed; remaining for the tenant:", all.PerRequest[0].Remaining)
			continue
		}
		denial := all.PerRequest[all.DeniedBy]
		fmt.Println("denied by request", all.DeniedBy, "for", denial.RetryAfter, "- remaining for the tenant:", all.PerRequest[0].Remaining)
	}
	// Output:
	// allowed; remaining for the tenant: 999
	// allowed; remaining for the tenant: 998
	// denied by request 1 for 30s - remaining for the tenant: 998
}

// Requests for one policy and key are decided on their sum. Each has its own Result.
func ExampleLimiter_AllowAll_sameKey() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 24 * time.Hour}
	for _, fee := range []float64{1_50, 30_00} {
		all, _ := l.AllowAll(ctx, budget.Request("account-1", 50_00), budget.Request("account-1", fee)) // cents
		fmt.Println(all.Allowed, all.PerRequest[0].Allowed, all.PerRequest[1].Allowed, all.PerRequest[1].Remaining)
	}
	// Output:
	// true true true 4850
	// false false false 4850
}

// A mail leaves at its turn, if the day's budget has room for it.
func ExampleLimiter_WaitAll() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	pace := limiter.Policy{Name: "pace", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 10}
	daily := limiter.Policy{Name: "daily", Algorithm: limiter.FixedWindow, Limit: 3, Calendar: limiter.Day}
	for range 4 {
		all, err := l.WaitAll(ctx, pace.Request("smtp", 1), daily.Request("smtp", 1))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(all.Allowed, all.PerRequest[0].Delay, all.PerRequest[1].Remaining)
	}
	// Output:
	// true 0s 2
	// true 10ms 1
	// true 20ms 0
	// false 0s 0
}
