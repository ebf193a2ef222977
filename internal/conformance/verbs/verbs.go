// Package verbs has the methods that a limiter and one in a transaction share, for tests
// and proofs that run over both. Applications declare the few methods that they call.
package verbs

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Limiter is a *limiter.Limiter or a *limiter.Tx.
type Limiter interface {
	Remote
	Undo(ctx context.Context, p limiter.Policy, key string, r limiter.Result) (limiter.Result, error)
}

// Remote has the methods that a client of the server has too.
type Remote interface {
	Allow(ctx context.Context, p limiter.Policy, key string) (limiter.Result, error)
	AllowN(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Do(ctx context.Context, request limiter.Request) (limiter.Result, error)
	AllowAll(ctx context.Context, requests ...limiter.Request) (limiter.Results, error)
	AllowAny(ctx context.Context, requests ...limiter.Request) (limiter.Any, error)
	AllowAnySplit(ctx context.Context, requests ...limiter.Request) (limiter.Any, error)
	AllowUpTo(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Check(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Usage(ctx context.Context, p limiter.Policy, key string) (limiter.Usage, error)

	Charge(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)
	Grant(ctx context.Context, p limiter.Policy, key string, units float64, o limiter.GrantOptions) (limiter.Result, error)
	Refund(ctx context.Context, p limiter.Policy, key string, cost float64) (limiter.Result, error)

	Reserve(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error)
	ReserveUpTo(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Reservation, error)
	Settle(ctx context.Context, id string, units float64) (limiter.Result, error)
	Cancel(ctx context.Context, id string) error
	ReserveAll(ctx context.Context, ttl time.Duration, requests ...limiter.Request) (limiter.Reservations, error)
	SettleAll(ctx context.Context, ids []string, units ...float64) ([]limiter.Result, error)
	CancelAll(ctx context.Context, ids ...string) error

	Attempt(ctx context.Context, p limiter.Policy, key string, o limiter.AttemptOptions) (limiter.Ticket, error)
	Succeeded(ctx context.Context, id string) error
	Failed(ctx context.Context, id string) (limiter.Result, error)

	Acquire(ctx context.Context, p limiter.Policy, key string) (limiter.Slot, error)
	DoAcquire(ctx context.Context, request limiter.Request, ttl time.Duration) (limiter.Slot, error)
	Renew(ctx context.Context, id string, ttl time.Duration) (expiresAt time.Time, err error)
	Release(ctx context.Context, id string) error

	Block(ctx context.Context, p limiter.Policy, key string, d time.Duration) error
	Unblock(ctx context.Context, p limiter.Policy, key string) error
	Reset(ctx context.Context, p limiter.Policy, key string) error
}
