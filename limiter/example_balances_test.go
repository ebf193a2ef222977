package limiter_test

import (
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// credits are prepaid; a customer may owe ten.
var credits = limiter.Policy{Name: "credits", Algorithm: limiter.Balance, Overdraft: 10}

func ExampleLimiter_Grant() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	bought, _ := l.Grant(ctx, credits, "acme", 100, limiter.GrantOptions{Source: "invoice 1042", IdempotencyKey: "invoice 1042"})
	gift, _ := l.Grant(ctx, credits, "acme", 20, limiter.GrantOptions{Source: "gift", Expires: noon().Add(24 * time.Hour)})
	fmt.Println(bought.Granted, gift.Granted)

	r, err := l.AllowN(ctx, credits, "acme", 30) // the gift first
	fmt.Println(r.Allowed, r.Remaining, err)
	use, err := l.Usage(ctx, credits, "acme")
	fmt.Println(use.Spent, use.Lots[0].Units, use.Lots[0].Source, err)
	r, err = l.AllowN(ctx, credits, "acme", 101)
	fmt.Println(r.Allowed, r.Remaining, r.RetryAfter == limiter.Never, err)
	// Output:
	// 100 20
	// true 100 <nil>
	// 30 90 invoice 1042 <nil>
	// false 100 true <nil>
}

func ExampleLimiter_Reserve_balance() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	_, _ = l.Grant(ctx, credits, "acme", 500, limiter.GrantOptions{Source: "invoice 1042"})
	work, err := l.Reserve(ctx, credits.Request("acme", 300), 10*time.Minute) // the most that it may cost
	fmt.Println(work.Result.Allowed, work.Result.Remaining, err)

	use, _ := l.Usage(ctx, credits, "acme")
	fmt.Println(use.Reserved, use.Spent)

	r, err := l.Settle(ctx, work.ID, 120) // 180 go back to the lot
	fmt.Println(r.Remaining, err)
	use, _ = l.Usage(ctx, credits, "acme")
	fmt.Println(use.Reserved, use.Spent, use.Lots[0].Units)
	// Output:
	// true 210 <nil>
	// 300 0
	// 390 <nil>
	// 0 120 380
}
