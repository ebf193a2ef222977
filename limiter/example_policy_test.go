package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

func ExamplePolicy_plans() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	paid := limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 1000, Period: time.Hour}
	free := paid
	free.Limit = 100
	_, _ = l.AllowN(ctx, paid, "alice", 300)
	r, _ := l.Allow(ctx, free, "alice") // alice changed to the free plan
	fmt.Println(r.Allowed, r.Level, r.Remaining, r.RetryAfter)
	// Output: false 300 0 1h0m0s
}

// A budget in cents for each month in the customer's time zone.
func ExamplePolicy_calendar() {
	now := time.Date(2026, 3, 31, 21, 59, 59, 0, time.UTC) // a second before April in Vienna
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	budget := limiter.Policy{
		Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00,
		Calendar: limiter.Month, TimeZone: "Europe/Vienna",
	}

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

// Each customer is billed from the day of the subscription on: the application has it in its
// own table, and keys under one name can have different anchors.
func ExamplePolicy_anchor() {
	now := time.Date(2025, 2, 10, 12, 0, 0, 0, time.UTC)
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	credits := limiter.Policy{Name: "credits", Algorithm: limiter.FixedWindow, Limit: 500, Calendar: limiter.Month, TimeZone: "Europe/Berlin"}
	for _, customer := range []struct{ id, start string }{{"acme", "2024-01-31"}, {"hooli", "2023-06-15T09:30"}} {
		theirs := credits
		theirs.Anchor = customer.start
		r, err := l.AllowN(ctx, theirs, customer.id, 20)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(customer.id, r.Remaining, "until", now.Add(r.ResetAfter).Format(time.RFC3339))
	}
	// Output:
	// acme 480 until 2025-02-27T23:00:00Z
	// hooli 480 until 2025-02-15T08:30:00Z
}

// A new limit is tried on real traffic before it denies anything.
func Example_shadow() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	export := limiter.Policy{Name: "export", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour, Shadow: true}
	for range 3 {
		r, err := l.Allow(ctx, export, "alice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("allowed:", r.Allowed, "shadowed:", r.Shadowed, r.Reason, r.RetryAfter)
	}
	// Output:
	// allowed: true shadowed: false  0s
	// allowed: true shadowed: false  0s
	// allowed: true shadowed: true limit 1h0m0s
}

// One hook sees each call of each method: here it logs denials and errors. Metrics count
// there, too.
func ExampleConfig_observe() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	l := limiter.NewMemory(&limiter.Config{Now: noon, Observe: func(ctx context.Context, o limiter.Observation) {
		switch {
		case o.Err != nil:
			logger.ErrorContext(ctx, "no decision", "verb", o.Verb, "policy", o.Request.Policy.Name, "error", o.Err)
		case o.Result.Reason != "": // denied, or a shadow policy would have
			logger.InfoContext(ctx, "denied", "verb", o.Verb, "policy", o.Request.Policy.Name, "key", o.Request.Key,
				"reason", o.Result.Reason, "retry_after", o.Result.RetryAfter, "shadowed", o.Result.Shadowed)
		}
	}})
	login := limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 1, Period: time.Minute}
	for range 2 {
		_, _ = l.Allow(ctx, login, "alice")
	}
	_ = l.Block(ctx, login, "bob", time.Hour)
	_, _ = l.Allow(ctx, login, "bob")
	_, _ = l.AllowN(ctx, login, "carol", 0)
	// Output:
	// level=INFO msg=denied verb=allow policy=login key=alice reason=limit retry_after=1m0s shadowed=false
	// level=INFO msg=denied verb=allow policy=login key=bob reason=blocked retry_after=1h0m0s shadowed=false
	// level=ERROR msg="no decision" verb=allow policy=login error="pglimit: invalid: cost 0: must be positive; Check at cost 0 reads without consuming"
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// limits is the part of a Limiter that Mailer calls. A Limiter, a Tx and a fake have it.
type limits interface {
	Allow(ctx context.Context, p limiter.Policy, key string) (limiter.Result, error)
}

// Mailer sends mails, within limits. It works in a transaction too: Mailer{l.InTx(tx)}.
type Mailer struct{ limits limits }

func (m Mailer) Send(ctx context.Context, to string) error {
	r, err := m.limits.Allow(ctx, limiter.PerHour("mails", 1), to)
	if err != nil {
		return err
	}
	return r.Err()
}

type away struct{}

func (away) Allow(context.Context, limiter.Policy, string) (limiter.Result, error) {
	return limiter.Result{}, limiter.ErrUnavailable
}

// Code that takes limits declares the methods that it calls, and its tests may fake them.
func Example_interface() {
	m := Mailer{limits: limiter.NewMemory(nil)}
	fmt.Println(m.Send(ctx, "alice"))
	var denied *limiter.DeniedError
	fmt.Println(errors.As(m.Send(ctx, "alice"), &denied))

	m = Mailer{limits: away{}}
	fmt.Println(m.Send(ctx, "alice"))
	// Output:
	// <nil>
	// true
	// pglimit: database unavailable
}
