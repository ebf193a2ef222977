package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// A budget in cents for each month in the customer's time zone.
func ExamplePolicy_calendar() {
	now := time.Date(2026, 3, 31, 21, 59, 59, 0, time.UTC) // a second before April in Vienna
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	budget := limiter.Policy{
		Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00,
		Calendar: limiter.Month, TimeZone: "Europe/Vienna",
	}
	ctx := context.Background()

	r, _ := l.AllowN(ctx, budget, "account-1", 1000_00)
	fmt.Println(r.Allowed, r.Remaining, r.ResetAfter)
	r, _ = l.AllowN(ctx, budget, "account-1", 1)
	fmt.Println(r.Allowed, r.RetryAfter)
	now = now.Add(r.RetryAfter)
	r, _ = l.AllowN(ctx, budget, "account-1", 1)
	fmt.Println(r.Allowed, r.Remaining)
	// Output:
	// true 0 1s
	// false 1s
	// true 99999
}
