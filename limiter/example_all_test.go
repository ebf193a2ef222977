package limiter_test

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func ExampleLimiter_AllowAll() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	perUser := limiter.PerMinute("user", 2)
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

// Batch work leaves a fifth of the limit to interactive work.
func ExampleRequest_floor() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	calls := limiter.PerMinute("calls", 10)
	batch := limiter.Request{Policy: calls, Key: "acme", Cost: 1, Floor: 0.2}
	for range 9 {
		r, err := l.Do(ctx, batch)
		if err != nil {
			fmt.Println(err)
			return
		}
		if !r.Allowed {
			fmt.Println("batch: denied for", r.RetryAfter, "- remaining:", r.Remaining)
		}
	}
	r, err := l.Allow(ctx, calls, "acme")
	fmt.Println("interactive:", r.Allowed, r.Remaining, err)
	// Output:
	// batch: denied for 6s - remaining: 2
	// interactive: true 1 <nil>
}

func ExampleResults_Err() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	all, _ := l.AllowAll(ctx, limiter.PerHour("tenant", 1000).Request("acme", 1), limiter.PerSecond("user", 1).Request("alice", 2))
	fmt.Println(all.DeniedBy, all.Err())
	// Output: 1 pglimit: denied by user: the cost is more than the limit ever allows
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

// An order is paid from the customer's credits, or else by the card, in one round trip while the
// credits last.
func ExampleLimiter_AllowAny() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	credits := limiter.Policy{Name: "credits", Algorithm: limiter.FixedWindow, Limit: 20_00, Calendar: limiter.Month}
	card := limiter.Policy{Name: "card", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 24 * time.Hour}
	for _, cents := range []float64{15_00, 15_00, 5_00, 90_00} {
		order, err := l.AllowAny(ctx, credits.Request("ann", cents), card.Request("ann", cents))
		switch {
		case err != nil:
			fmt.Println(err)
		case order.Allowed:
			paid := order.PerRequest[order.GrantedBy]
			fmt.Println(paid.Granted, "by", paid.Policy.Name, "- remaining:", paid.Remaining)
		default:
			fmt.Println("not before", order.RetryAfter)
		}
	}
	// Output:
	// 1500 by credits - remaining: 500
	// 1500 by card - remaining: 8500
	// 500 by credits - remaining: 0
	// not before 24h0m0s
}

// A cost that the weekly limit has in part takes the rest from the credits. What is not delivered
// goes back, the last pool first.
func ExampleLimiter_AllowAnySplit() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	weekly := limiter.Policy{Name: "weekly", Algorithm: limiter.FixedWindow, Limit: 100, Calendar: limiter.Week}
	credits := limiter.Policy{Name: "credits", Algorithm: limiter.FixedWindow, Limit: 50, Calendar: limiter.Month}
	pools := func(cost float64) []limiter.Request {
		return []limiter.Request{weekly.Request("ann", cost), credits.Request("ann", cost)}
	}
	_, _ = l.AllowAny(ctx, pools(80)...)
	for _, cost := range []float64{30, 45} {
		a, err := l.AllowAnySplit(ctx, pools(cost)...)
		fmt.Println(a.Allowed, a.PerRequest[0].Granted, a.PerRequest[1].Granted, err)
		for i, r := range slices.Backward(a.PerRequest) {
			if r.Granted > 0 {
				back, err := l.Undo(ctx, r.Policy, pools(cost)[i].Key, r)
				fmt.Println(r.Policy.Name, "got back", back.Granted, err)
			}
		}
	}
	a, err := l.AllowAnySplit(ctx, pools(71)...)
	fmt.Println(a.Allowed, a.Err(), err)
	// Output:
	// true 20 10 <nil>
	// credits got back 10 <nil>
	// weekly got back 20 <nil>
	// true 20 25 <nil>
	// credits got back 25 <nil>
	// weekly got back 20 <nil>
	// false pglimit: denied by weekly (limit): retry after 156h <nil>
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

// tokens is a budget of a language model's tokens.
var tokens = limiter.Policy{Name: "tokens", Algorithm: limiter.FixedWindow, Limit: 10_000, Period: time.Hour}

// A budget has less left than a request may cost: it gets what there is.
func ExampleLimiter_ReserveUpTo() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	_, _ = l.AllowN(ctx, tokens, "tenant-7", 9000)
	reservation, err := l.ReserveUpTo(ctx, tokens.Request("tenant-7", 4000), time.Minute)
	fmt.Println("spend at most", reservation.Result.Granted, err)

	r, err := l.Settle(ctx, reservation.ID, 400)
	fmt.Println("remaining:", r.Remaining, err)
	// Output:
	// spend at most 1000 <nil>
	// remaining: 600 <nil>
}

// Estimates of 4,000 tokens, of which 500 are really spent, come to reserve that.
func ExampleRequest_estimate() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	estimate := limiter.Request{Policy: tokens, Key: "tenant-7", Cost: 4000, Estimate: true}
	for range 6 {
		reservation, err := l.Reserve(ctx, estimate, time.Minute)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("reserved", reservation.Result.Granted)
		_, _ = l.Settle(ctx, reservation.ID, 500)
	}
	// Output:
	// reserved 4000
	// reserved 4000
	// reserved 4000
	// reserved 4000
	// reserved 4000
	// reserved 500
}

// The cost of a stream is known only after it has ended. Reserve the largest cost and
// settle with the real one.
func ExampleLimiter_Reserve() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	reservation, err := l.Reserve(ctx, tokens.Request("tenant-7", 4000), 10*time.Minute)
	if err != nil || !reservation.Result.Allowed {
		fmt.Println("not now:", reservation.Result.RetryAfter, err)
		return
	}
	fmt.Println("reserved until", reservation.ExpiresAt.UTC().Format(time.TimeOnly), "remaining:", reservation.Result.Remaining)

	r, err := l.Settle(ctx, reservation.ID, 1234) // here, or in another process that knows the ID
	fmt.Println("remaining:", r.Remaining, err)
	// Output:
	// reserved until 12:10:00 remaining: 6000
	// remaining: 8766 <nil>
}

func ExampleLimiter_Settle() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	reservation, _ := l.Reserve(ctx, tokens.Request("tenant-7", 9000), time.Minute)
	r, _ := l.Settle(ctx, reservation.ID, 12_000) // more than was reserved, and more than the limit
	fmt.Println(r.Granted, r.Level, r.Remaining, r.Full)

	r, _ = l.Settle(ctx, reservation.ID, 12_000) // a retry, if the answer was lost
	fmt.Println(r.Level, r.Replayed)

	_, err := l.Settle(ctx, reservation.ID, 100)
	fmt.Println(errors.Is(err, limiter.ErrReservationEnded), err)
	// Output:
	// 12000 12000 0 true
	// 12000 true
	// true pglimit: the reservation has ended: it was settled, with 12000 of its 9000 units
}

func ExampleLimiter_Cancel() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	reservation, _ := l.Reserve(ctx, tokens.Request("tenant-7", 9000), time.Minute)
	fmt.Println(reservation.Result.Remaining)
	err := l.Cancel(ctx, reservation.ID)
	r, _ := l.Check(ctx, tokens, "tenant-7", 0)
	fmt.Println(r.Remaining, err)
	fmt.Println(l.Cancel(ctx, reservation.ID)) // again: not an error
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
	fmt.Println("spent", s.Spent, "reserved", s.Reserved, "by", s.Reservations, "remaining", s.Result.Remaining, err)
	fmt.Println("until", s.WindowEndsAt.UTC().Format(time.TimeOnly))
	// Output:
	// spent 3000 reserved 4000 by 1 remaining 3000 <nil>
	// until 13:00:00
}

// A call of a language model spends from a tenant's budget and from the company's. What it costs
// is known afterwards.
func ExampleLimiter_ReserveAll() {
	l := limiter.NewMemory(nil)
	defer l.Close()
	tenant, company := limiter.PerHour("tenant", 10_000), limiter.PerHour("company", 100_000)
	both, err := l.ReserveAll(ctx, 5*time.Minute, tenant.Request("acme", 4000), company.Request("all", 4000))
	if err != nil || !both.Results.Allowed {
		fmt.Println(both.Results.DeniedBy, err)
		return
	}
	spent, err := l.SettleAll(ctx, both.IDs, 2310) // one number for both; CancelAll gives all back
	fmt.Println(len(spent), spent[0].Remaining, spent[1].Remaining, err)
	// Output: 2 7690 97690 <nil>
}

// A failed call spends nothing.
func ExampleLimiter_CancelAll() {
	l := limiter.NewMemory(nil)
	defer l.Close()
	tenant, company := limiter.PerHour("tenant", 10_000), limiter.PerHour("company", 100_000)
	both, _ := l.ReserveAll(ctx, 5*time.Minute, tenant.Request("acme", 4000), company.Request("all", 4000))
	fmt.Println(l.CancelAll(ctx, both.IDs...))
	r, _ := l.Check(ctx, tenant, "acme", 1)
	fmt.Println(r.Remaining)
	// Output:
	// <nil>
	// 10000
}

// A repeated order counts once, although it names two limits.
func ExampleLimiter_AllowAll_once() {
	l := limiter.NewMemory(nil)
	defer l.Close()
	orders := []limiter.Request{limiter.PerHour("tenant", 10).Request("acme", 3), limiter.PerHour("company", 100).Request("all", 3)}
	for i := range orders {
		orders[i].IdempotencyKey = "order 7"
	}
	for range 2 {
		all, err := l.AllowAll(ctx, orders...)
		fmt.Println(all.Allowed, all.PerRequest[0].Remaining, all.PerRequest[0].Replayed, err)
	}
	// Output:
	// true 7 false <nil>
	// true 7 true <nil>
}

// What an order did not cost goes back to the pool that gave last first.
func ExampleAny_Back() {
	l := limiter.NewMemory(nil)
	defer l.Close()
	weekly := limiter.Policy{Name: "weekly", Algorithm: limiter.FixedWindow, Limit: 30, Period: 7 * 24 * time.Hour}
	credits := limiter.Policy{Name: "credits", Algorithm: limiter.FixedWindow, Limit: 100, Period: 365 * 24 * time.Hour}
	pools := []limiter.Request{weekly.Request("alice", 40), credits.Request("alice", 40)}
	given, _ := l.AllowAnySplit(ctx, pools...) // 30 and 10
	for i, units := range given.Back(15) {     // the work cost 25
		r, _ := l.Refund(ctx, pools[i].Policy, pools[i].Key, units)
		fmt.Println(pools[i].Policy.Name, units, r.Remaining)
	}
	// Output:
	// weekly 5 5
	// credits 10 100
}
