package soak

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// traffic holds the requests of the callers.
type traffic struct {
	plan     plan
	limiter  *limiter.Limiter
	pool     *pgxpool.Pool // of the application's own transactions
	clock    clock
	keys     *population
	requests atomic.Int64
}

// request sends a new key's first request if one is due, else one of the mixture. On a
// machine that is too slow for the rate every second request is one of the mixture.
func (t *traffic) request(ctx context.Context, _ string) (float64, error) {
	if t.requests.Add(1)%2 == 0 {
		if n, ok := t.keys.arrive(t.plan.arrivals(time.Since(t.clock.start))); ok {
			return 1, allow(ctx, t, t.target(n))
		}
	}
	if n, ok := t.keys.draw(); ok {
		at := rand.IntN(100)
		for _, m := range mixture {
			if at -= m.percent; at < 0 {
				return 1, m.send(ctx, t, t.target(n))
			}
		}
	}
	return 1, nil
}

// target is a key to send requests for.
type target struct {
	limiter.Policy
	key  string
	used func(time.Time) // receives until when its row is in use
}

// target returns the key of the population with a number.
func (t *traffic) target(n int) target {
	return target{policies[n%len(policies)], keyName(n), func(until time.Time) { t.keys.note(n, until) }}
}

// saw notes an answer's end of use, unless there was an error.
func (k target) saw(r limiter.Result, err error) error {
	if err == nil {
		k.used(r.At.Add(r.ResetAfter))
	}
	return err
}

// returns reports whether the key's policy gives units back: a queue does not.
func (k target) returns() bool { return k.Algorithm != limiter.LeakyBucketQueue }

// mixture is the share of each operation in a hundred.
var mixture = []struct {
	percent int
	send    func(context.Context, *traffic, target) error
}{
	{52, allow},
	{8, func(ctx context.Context, t *traffic, k target) error {
		return k.saw(t.limiter.AllowN(ctx, k.Policy, k.key, float64(2+rand.IntN(4))))
	}},
	{6, func(ctx context.Context, t *traffic, k target) error {
		return k.saw(t.limiter.AllowUpTo(ctx, k.Policy, k.key, 5))
	}},
	{4, once},
	{4, allowAll},
	{4, transaction},
	{4, func(ctx context.Context, t *traffic, k target) error {
		_, err := t.limiter.Check(ctx, k.Policy, k.key, 1)
		return err
	}},
	{4, func(ctx context.Context, t *traffic, k target) error {
		return k.saw(t.limiter.Charge(ctx, k.Policy, k.key, 1))
	}},
	{4, giveBack},
	{7, reserve},
	{3, operate},
}

func allow(ctx context.Context, t *traffic, k target) error {
	return k.saw(t.limiter.Allow(ctx, k.Policy, k.key))
}

// once sends a request with an idempotency key twice.
func once(ctx context.Context, t *traffic, k target) error {
	request := k.Request(k.key, 1)
	request.IdempotencyKey = strconv.FormatUint(rand.Uint64(), 36)
	for range 2 {
		if err := k.saw(t.limiter.Do(ctx, request)); err != nil {
			return err
		}
	}
	return nil
}

// allowAll requests two keys at once.
func allowAll(ctx context.Context, t *traffic, k target) error {
	keys, requests := []target{k}, []limiter.Request{k.Request(k.key, 1)}
	if n, ok := t.keys.draw(); ok {
		other := t.target(n)
		keys, requests = append(keys, other), append(requests, other.Request(other.key, 1))
	}
	all, err := t.limiter.AllowAll(ctx, requests...)
	if err != nil {
		return err
	}
	for i, r := range all.PerRequest {
		if r.Source != limiter.SourceSkipped {
			_ = keys[i].saw(r, nil)
		}
	}
	return nil
}

// errRollBack makes a transaction roll back.
var errRollBack = errors.New("roll back")

// transaction takes a limit in an application's transaction, and rolls one of four back.
func transaction(ctx context.Context, t *traffic, k target) error {
	var r limiter.Result
	err := limiter.RunTx(ctx, t.limiter, t.pool, nil, func(_ pgx.Tx, limits *limiter.Tx) (err error) {
		if r, err = limits.Allow(ctx, k.Policy, k.key); err == nil && rand.IntN(4) == 0 {
			err = errRollBack
		}
		return err
	})
	if errors.Is(err, errRollBack) {
		return nil
	}
	return k.saw(r, err)
}

// giveBack refunds a unit, or undoes a request.
func giveBack(ctx context.Context, t *traffic, k target) error {
	if !k.returns() {
		return allow(ctx, t, k)
	}
	if rand.IntN(2) == 0 {
		return k.saw(t.limiter.Refund(ctx, k.Policy, k.key, 1))
	}
	r, err := t.limiter.Allow(ctx, k.Policy, k.key)
	if err = k.saw(r, err); err != nil || !r.Allowed {
		return err
	}
	return k.saw(t.limiter.Undo(ctx, k.Policy, k.key, r))
}

// reserve reserves units, and then settles them, cancels them or leaves them open.
func reserve(ctx context.Context, t *traffic, k target) error {
	if !k.returns() {
		return allow(ctx, t, k)
	}
	const ttl = 10 * time.Minute
	held, err := t.limiter.Reserve(ctx, k.Request(k.key, 3), ttl)
	if err = k.saw(held.Result, err); err != nil || held.ID == "" {
		return err
	}
	k.used(held.ExpiresAt) // until it has ended the row stays, whatever it counts
	switch rand.IntN(4) {
	case 0:
		return nil // left open
	case 1:
		err = t.limiter.Cancel(ctx, held.ID)
	default:
		err = k.saw(t.limiter.Settle(ctx, held.ID, float64(rand.IntN(5))))
	}
	if errors.Is(err, limiter.ErrReservationEnded) && t.clock.Now().After(held.ExpiresAt) {
		return nil
	}
	return err
}

// operate does what an operator does: blocks a key, lifts the block, looks or resets.
func operate(ctx context.Context, t *traffic, k target) error {
	switch rand.IntN(4) {
	case 0:
		err := t.limiter.Block(ctx, k.Policy, k.key, block)
		k.used(t.clock.Now().Add(block))
		return err
	case 1:
		return t.limiter.Unblock(ctx, k.Policy, k.key)
	case 2:
		return t.limiter.Reset(ctx, k.Policy, k.key)
	}
	_, err := t.limiter.Usage(ctx, k.Policy, k.key)
	return err
}
