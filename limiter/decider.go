package limiter

import (
	"context"
	"time"
)

// Decider has the methods that Limiter and Tx share. Code that takes a Decider works
// outside a transaction and in one, and with a fake in its tests:
//
//	type Mailer struct{ Limits limiter.Decider }
//
// Limiter documents each method, and Tx the differences in a transaction. A Limiter is safe
// for concurrent use; a Tx is for one goroutine at a time.
//
// Later versions may add methods. So a fake should embed a Decider, which may be nil, and
// have the methods that its test calls. In most tests NewMemory needs less code than a
// fake, and decides as PostgreSQL does.
type Decider interface {
	Allow(ctx context.Context, p Policy, key string) (Result, error)
	AllowN(ctx context.Context, p Policy, key string, n float64) (Result, error)
	Do(ctx context.Context, request Request) (Result, error)
	AllowAll(ctx context.Context, requests ...Request) (Results, error)
	AllowUpTo(ctx context.Context, p Policy, key string, n float64) (Result, error)
	Check(ctx context.Context, p Policy, key string, n float64) (Result, error)
	Usage(ctx context.Context, p Policy, key string) (Usage, error)

	Charge(ctx context.Context, p Policy, key string, n float64) (Result, error)
	Refund(ctx context.Context, p Policy, key string, n float64) (Result, error)
	Undo(ctx context.Context, p Policy, key string, r Result) (Result, error)

	Reserve(ctx context.Context, request Request, ttl time.Duration) (Reservation, error)
	Settle(ctx context.Context, id string, units float64) (Result, error)
	Cancel(ctx context.Context, id string) error

	Block(ctx context.Context, p Policy, key string, d time.Duration) error
	Unblock(ctx context.Context, p Policy, key string) error
	Reset(ctx context.Context, p Policy, key string) error
}
