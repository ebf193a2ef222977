package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// exports lets a tenant run two exports at a time. One whose process dies ends after 30 seconds.
var exports = limiter.Policy{Name: "exports", Algorithm: limiter.Concurrency, Limit: 2, Period: 30 * time.Second}

func ExampleLimiter_Acquire() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	for range 3 {
		slot, err := l.Acquire(ctx, exports, "acme")
		fmt.Println(slot.Result.Allowed, slot.Result.Remaining, slot.Result.RetryAfter, err)
	}
	// Output:
	// true 1 0s <nil>
	// true 0 0s <nil>
	// false 0 30s <nil>
}

func ExampleLimiter_DoAcquire() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	slot, err := l.DoAcquire(ctx, exports.Request("acme", 2), time.Minute) // both, for a minute
	fmt.Println(slot.Result.Allowed, slot.ExpiresAt.Sub(noon()), slot.Fence > 0, err)
	// Output: true 1m0s true <nil>
}

func ExampleLimiter_AcquireWait() {
	l := limiter.NewMemory(nil)
	first, _ := l.DoAcquire(ctx, exports.Request("acme", 2), 0)
	go func() { _ = l.Release(ctx, first.ID) }()
	slot, err := l.AcquireWait(ctx, exports.Request("acme", 1), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = l.Keep(ctx, slot, func(context.Context) error { fmt.Println("exporting"); return nil })
	fmt.Println(err)
	// Output:
	// exporting
	// <nil>
}

func ExampleLimiter_Renew() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	slot, _ := l.Acquire(ctx, exports, "acme")
	until, err := l.Renew(ctx, slot.ID, time.Minute)
	fmt.Println(until.Sub(noon()), err)
	// Output: 1m0s <nil>
}

func ExampleLimiter_Release() {
	l := limiter.NewMemory(nil)
	slot, _ := l.Acquire(ctx, exports, "acme")
	fmt.Println(l.Release(ctx, slot.ID))
	fmt.Println(errors.Is(l.Release(ctx, slot.ID), limiter.ErrNoSlot))
	// Output:
	// <nil>
	// true
}

func ExampleLimiter_DoWith() {
	l := limiter.NewMemory(nil)
	err := l.DoWith(ctx, exports, "acme", func(ctx context.Context) error {
		fmt.Println("exporting") // and stop when ctx ends: then the slot is lost
		return nil
	})
	fmt.Println(err)
	// Output:
	// exporting
	// <nil>
}

func ExampleLimiter_Keep() {
	l := limiter.NewMemory(nil)
	slot, _ := l.DoAcquire(ctx, exports.Request("acme", 2), 0)
	err := l.Keep(ctx, slot, func(ctx context.Context) error {
		var denied *limiter.DeniedError
		err := l.DoWith(ctx, exports, "acme", func(context.Context) error { return nil })
		fmt.Println(errors.As(err, &denied))
		return nil
	})
	fmt.Println(err)
	// Output:
	// true
	// <nil>
}
