package limiter_test

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// logins makes the third failure in a row wait for a minute, and each further one twice as
// long, up to an hour. A day without a failure forgets them.
var logins = limiter.Policy{
	Name: "logins", Algorithm: limiter.Attempts,
	Limit: 3, Period: 24 * time.Hour, BlockFor: time.Minute, BlockMax: time.Hour,
}

func ExampleLimiter_Attempt() {
	l := limiter.NewMemory(nil)
	login := func(user, password, network string) string {
		ticket, err := l.Attempt(ctx, logins, user, limiter.AttemptOptions{From: network})
		switch {
		case err != nil:
			return err.Error()
		case !ticket.Result.Allowed:
			return "try again later"
		case password != "correct horse":
			if _, err := l.Failed(ctx, ticket.ID); err != nil {
				return err.Error()
			}
			return "wrong password"
		}
		if err := l.Succeeded(ctx, ticket.ID); err != nil {
			return err.Error()
		}
		return "welcome"
	}
	fmt.Println(login("alice", "correct horse", "192.0.2.0/24"))
	for range 4 {
		fmt.Println(login("alice", "guess", "198.51.100.0/24"))
	}
	fmt.Println(login("alice", "correct horse", "192.0.2.0/24")) // has succeeded before
	// Output:
	// welcome
	// wrong password
	// wrong password
	// wrong password
	// try again later
	// welcome
}

func ExampleLimiter_Failed() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	for range 3 {
		ticket, _ := l.Attempt(ctx, logins, "alice", limiter.AttemptOptions{})
		r, err := l.Failed(ctx, ticket.ID)
		fmt.Println(r.Level, r.Remaining, r.RetryAfter, err)
	}
	// Output:
	// 1 2 0s <nil>
	// 2 1 0s <nil>
	// 3 0 1m0s <nil>
}

func ExampleLimiter_Succeeded() {
	l := limiter.NewMemory(&limiter.Config{Now: noon})
	first, _ := l.Attempt(ctx, logins, "alice", limiter.AttemptOptions{TTL: time.Minute})
	second, _ := l.Attempt(ctx, logins, "alice", limiter.AttemptOptions{})
	fmt.Println(first.Result.Allowed, second.Result.Allowed, second.Result.Reason) // one at once
	fmt.Println(l.Succeeded(ctx, first.ID))
	third, _ := l.Attempt(ctx, logins, "alice", limiter.AttemptOptions{})
	fmt.Println(third.Result.Allowed)
	// Output:
	// true false limit
	// <nil>
	// true
}

// The login's record and its report in one transaction: both happen or neither. Begin the
// attempt and report a failure outside of it, because a rollback would take the failure back.
func ExampleTx_Succeeded() {
	login := func(pool *pgxpool.Pool, l *limiter.Limiter, user, network string, right bool) error {
		ticket, err := l.Attempt(ctx, logins, user, limiter.AttemptOptions{From: network})
		switch {
		case err != nil:
			return err
		case !ticket.Result.Allowed:
			return ticket.Result.Err()
		case !right:
			_, err := l.Failed(ctx, ticket.ID)
			return err
		}
		return limiter.RunTx(ctx, l, pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
			if err := limits.Succeeded(ctx, ticket.ID); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO logins (account, network) VALUES ($1, $2)", user, network)
			return err
		})
	}
	_ = login
}
