package limiter_test

import (
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// tokens is a budget of a language model's tokens.
var tokens = limiter.Policy{Name: "tokens", Algorithm: limiter.FixedWindow, Limit: 10_000, Period: time.Hour}

// What a stream will cost is not known before it has ended: reserve what it may
// cost at most, and settle with what it did.
func ExampleLimiter_Reserve() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	hold, err := l.Reserve(ctx, tokens.Request("tenant-7", 4000), 10*time.Minute)
	if err != nil || !hold.Result.Allowed {
		fmt.Println("not now:", hold.Result.RetryAfter, err)
		return
	}
	fmt.Println("held until", hold.Expires.UTC().Format(time.TimeOnly), "and left:", hold.Result.Remaining)

	r, err := l.Settle(ctx, hold.ID, 1234) // here, or in another process that knows the ID
	fmt.Println("left:", r.Remaining, err)
	// Output:
	// held until 12:10:00 and left: 6000
	// left: 8766 <nil>
}

// A hold that nobody ends comes back by itself once it has expired.
func ExampleLimiter_Reserve_expired() {
	now := noon()
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	hold, _ := l.Reserve(ctx, tokens.Request("tenant-7", 10_000), time.Minute)
	r, _ := l.AllowN(ctx, tokens, "tenant-7", 500)
	fmt.Println(r.Allowed)

	now = hold.Expires
	r, _ = l.AllowN(ctx, tokens, "tenant-7", 500)
	fmt.Println(r.Allowed, r.Level)
	// Output:
	// false
	// true 500
}

func ExampleLimiter_Settle() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	hold, _ := l.Reserve(ctx, tokens.Request("tenant-7", 9000), time.Minute)
	r, _ := l.Settle(ctx, hold.ID, 12_000) // more than was held, and than there was
	fmt.Println(r.Granted, r.Level, r.Remaining, r.Full)

	r, _ = l.Settle(ctx, hold.ID, 12_000) // its answer was lost, say
	fmt.Println(r.Level, r.Replayed)

	_, err := l.Settle(ctx, hold.ID, 100)
	fmt.Println(errors.Is(err, limiter.ErrReservationEnded), err)
	// Output:
	// 12000 12000 0 true
	// 12000 true
	// true pglimit: the reservation has ended: it was settled, with 12000 of its 9000 units
}

func ExampleLimiter_Cancel() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	hold, _ := l.Reserve(ctx, tokens.Request("tenant-7", 9000), time.Minute)
	fmt.Println(hold.Result.Remaining)
	err := l.Cancel(ctx, hold.ID)
	r, _ := l.Check(ctx, tokens, "tenant-7", 0)
	fmt.Println(r.Remaining, err)
	fmt.Println(l.Cancel(ctx, hold.ID)) // again, which is no error
	// Output:
	// 1000
	// 10000 <nil>
	// <nil>
}

// An order that is sent twice is counted once.
func ExampleRequest_idempotencyKey() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 24 * time.Hour}
	order := limiter.Request{Policy: budget, Key: "account-1", Cost: 99_90, IdempotencyKey: "order 4711"}
	for range 2 {
		r, err := l.Do(ctx, order)
		fmt.Println(r.Allowed, r.Remaining, r.Replayed, err)
	}
	order.Cost = 1
	_, err := l.Do(ctx, order)
	fmt.Println(err)
	// Output:
	// true 10 false <nil>
	// true 10 true <nil>
	// pglimit: invalid: IdempotencyKey "order 4711": was used with cost 9990, now with 1
}

func ExampleLimiter_Usage() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	_, _ = l.AllowN(ctx, tokens, "tenant-7", 3000)
	_, _ = l.Reserve(ctx, tokens.Request("tenant-7", 4000), time.Minute)
	s, err := l.Usage(ctx, tokens, "tenant-7")
	fmt.Println("spent", s.Spent, "held", s.Reserved, "by", s.Reservations, "left", s.Remaining, err)
	fmt.Println("until", s.WindowEnds.UTC().Format(time.TimeOnly))
	// Output:
	// spent 3000 held 4000 by 1 left 3000 <nil>
	// until 13:00:00
}
