package limiter_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

var ctx = context.Background()

// noon is a stopped clock, so that the outputs are the same every time.
func noon() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) }

func Example() {
	l := limiter.NewMemory(nil) // or limiter.New(pool, nil)
	messages := limiter.PerHour("messages", 2)
	for range 3 {
		r, err := l.Allow(ctx, messages, "alice")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(r.Allowed)
	}
	// Output:
	// true
	// true
	// false
}

func ExampleLimiter_Do() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	api := limiter.Policy{Name: "api", Algorithm: limiter.GCRA, Limit: 100, Period: time.Minute, Burst: 20}
	r, err := l.Do(ctx, limiter.Request{Policy: api, Key: limiter.JoinKey("tenant-7", "search"), Cost: 5})
	fmt.Println(r.Allowed, r.Granted, r.Remaining, err)
	// Output: true 5 15 <nil>
}

func ExampleLimiter_Allow() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	messages := limiter.Policy{Name: "messages", Algorithm: limiter.TokenBucket, Limit: 1, Period: 30 * time.Second}
	first, _ := l.Allow(ctx, messages, "alice")
	second, _ := l.Allow(ctx, messages, "alice")
	fmt.Println(first.Allowed, second.Allowed, second.Reason, second.RetryAfter)
	// Output: true false limit 30s
}

func ExamplePerMinute() {
	messages := limiter.PerMinute("messages", 5)
	fmt.Println(messages.Algorithm, messages.Limit, messages.Period)
	messages.Burst = 10 // 10 at once
	// Output: token_bucket 5 1m0s
}

func ExampleResult_Err() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	send := func() error {
		r, err := l.Allow(ctx, limiter.PerMinute("mails", 1), "alice")
		if err != nil {
			return err
		}
		return r.Err()
	}
	fmt.Println(send())
	err := send()
	var denied *limiter.DeniedError
	fmt.Println(errors.As(err, &denied), err)
	// Output:
	// <nil>
	// true pglimit: denied by mails (limit): retry after 1m
}

func ExampleLimiter_AllowN() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 100_00, Period: 24 * time.Hour}
	r, _ := l.AllowN(ctx, budget, "account-1", 99_90) // cents
	fmt.Println(r.Allowed, r.Remaining)
	r, _ = l.AllowN(ctx, budget, "account-1", 11)
	fmt.Println(r.Allowed, r.Remaining)
	// Output:
	// true 10
	// false 10
}

func ExampleLimiter_AllowUpTo() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	rows := limiter.Policy{Name: "rows", Algorithm: limiter.LeakyBucket, Limit: 1000, Period: time.Minute}
	r, _ := l.AllowUpTo(ctx, rows, "import", 700)
	fmt.Println(r.Allowed, r.Granted)
	r, _ = l.AllowUpTo(ctx, rows, "import", 700)
	fmt.Println(r.Allowed, r.Granted, r.RetryAfter)
	// Output:
	// true 700
	// true 300 60ms
}

func ExampleLimiter_Check() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 3, Period: time.Minute}
	l.AllowN(ctx, p, "k", 2)
	r, _ := l.Check(ctx, p, "k", 2) // consumes nothing
	fmt.Println(r.Allowed, r.RetryAfter)
	r, _ = l.Check(ctx, p, "k", 0) // only reads
	fmt.Println(r.Allowed, r.Level, r.Remaining, r.ResetAfter)
	// Output:
	// false 1m0s
	// true 2 1 1m0s
}

func ExampleLimiter_Charge() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	tokens := limiter.Policy{Name: "tokens", Algorithm: limiter.LeakyBucket, Limit: 1000, Period: time.Minute}
	r, _ := l.Charge(ctx, tokens, "alice", 800) // the model has answered already
	fmt.Println(r.Granted, r.Full)
	r, _ = l.Charge(ctx, tokens, "alice", 800)
	fmt.Println(r.Granted, r.Full)
	// Output:
	// 800 false
	// 200 true
}

func ExampleLimiter_Refund() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	logins := limiter.Policy{Name: "failed-logins", Algorithm: limiter.SlidingWindowCounter, Limit: 5, Period: time.Hour}
	key := limiter.JoinKey("alice", "192.0.2.1") // the account and the client's address
	l.Allow(ctx, logins, key)
	r, _ := l.Refund(ctx, logins, key, 1) // the password was right after all
	fmt.Println(r.Granted, r.Remaining)
	// Output: 1 5
}

// Units that have leaked since are not given back.
func ExampleLimiter_Undo() {
	now := noon()
	l := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return now }})
	tokens := limiter.PerSecond("tokens", 100)
	granted, _ := l.AllowN(ctx, tokens, "alice", 50)
	now = now.Add(200 * time.Millisecond) // the work failed
	r, _ := l.Undo(ctx, tokens, "alice", granted)
	fmt.Println(r.Granted, r.Remaining)
	// Output: 30 100
}

func ExampleLimiter_Wait() {
	l := limiter.NewMemory(nil)
	mails := limiter.Policy{Name: "mails", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 2}
	for i := range 2 {
		if err := l.Wait(ctx, mails, "smtp", 1); err == nil {
			fmt.Println("send", i)
		}
	}
	var denied *limiter.DeniedError
	err := l.Wait(ctx, mails, "smtp", 3)
	fmt.Println(errors.As(err, &denied), err)
	// Output:
	// send 0
	// send 1
	// true pglimit: denied by mails: the cost is more than the limit ever allows
}

func ExampleLimiter_DoWait() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	mails := limiter.Policy{Name: "mails", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 2}
	for range 3 { // the clock is stopped, so the queue fills
		r, err := l.DoWait(ctx, mails.Request("smtp", 1))
		fmt.Println(r.Allowed, r.Delay, r.RetryAfter, err)
	}
	// Output:
	// true 0s 0s <nil>
	// true 10ms 0s <nil>
	// false 0s 10ms <nil>
}

func ExampleLimiter_Reset() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	p := limiter.PerHour("p", 1)
	l.Allow(ctx, p, "k")
	err := l.Reset(ctx, p, "k")
	r, _ := l.Allow(ctx, p, "k")
	fmt.Println(err, r.Allowed)
	// Output: <nil> true
}

func ExampleLimiter_Block() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	p := limiter.PerHour("p", 10)
	err := l.Block(ctx, p, "mallory", 24*time.Hour)
	r, _ := l.Allow(ctx, p, "mallory")
	fmt.Println(err, r.Allowed, r.Reason, r.RetryAfter)
	// Output: <nil> false blocked 24h0m0s
}

func ExampleLimiter_Unblock() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 10, Period: time.Hour, BlockFor: time.Hour}
	l.AllowN(ctx, p, "alice", 9)
	l.AllowN(ctx, p, "alice", 9) // denied, and blocked for an hour
	err := l.Unblock(ctx, p, "alice")
	r, _ := l.Allow(ctx, p, "alice")
	fmt.Println(err, r.Allowed, r.Remaining)
	// Output: <nil> true 0
}

func ExampleLimiter_Close() {
	l := limiter.NewMemory(nil)
	fmt.Println(l.Close())
	_, err := l.Allow(ctx, limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}, "k")
	fmt.Println(errors.Is(err, limiter.ErrClosed))
	// Output:
	// <nil>
	// true
}

// An order and its spending in one transaction: both happen or neither does. RunTx does
// the same and runs the transaction again after a conflict.
func ExampleLimiter_InTx() {
	placeOrder := func(pool *pgxpool.Pool, l *limiter.Limiter, account string, cents float64) error {
		budget := limiter.Policy{Name: "budget", Algorithm: limiter.FixedWindow, Limit: 1000_00, Period: 30 * 24 * time.Hour}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO orders (account, cents) VALUES ($1, $2)", account, cents); err != nil {
				return err
			}
			r, err := l.InTx(tx).AllowN(ctx, budget, account, cents)
			if err != nil {
				return err
			}
			return r.Err() // a denial rolls the order back
		})
	}
	_ = placeOrder
}

func ExampleJoinKey() {
	fmt.Println(limiter.JoinKey("tenant", "user"))
	fmt.Println(limiter.JoinKey("a:b", "c"), limiter.JoinKey("a", "b:c"))
	// Output:
	// tenant:user
	// a\:b:c a:b\:c
}

func ExamplePolicy_Validate() {
	p := limiter.Policy{Name: "api", Algorithm: limiter.TokenBucket, Limit: -5, Period: time.Minute}
	fmt.Println(p.Validate())
	// Output: pglimit: invalid policy: Limit -5: must be from 1e-9 to 2^53
}

func ExamplePolicy_UnmarshalJSON() {
	var p limiter.Policy
	err := json.Unmarshal([]byte(`{"name": "api", "algorithm": "gcra", "limit": 100, "period": "1m", "burst": 20}`), &p)
	fmt.Println(p.Algorithm, p.Limit, p.Period, p.Burst, err)
	// Output: gcra 100 1m0s 20 <nil>
}

// While the database is away, a policy that is FailLocal goes on with its part of the limit:
// here 2 of 20, as if ten processes shared them. With FailOpen all would pass, and with
// FailClosed none.
func ExampleFailMode() {
	pool, err := pgxpool.New(ctx, "postgres://127.0.0.1:1/away") // where no server listens
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	l, err := limiter.New(pool, &limiter.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	api := limiter.PerHour("api", 20)
	api.OnError, api.LocalShare = limiter.FailLocal, 0.1
	for range 3 {
		r, err := l.Allow(ctx, api, "alice")
		fmt.Println(r.Allowed, r.Source, err)
	}
	// Output:
	// true degraded <nil>
	// true degraded <nil>
	// false degraded <nil>
}
