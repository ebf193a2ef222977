package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// errRollBack makes a transaction roll back.
var errRollBack = errors.New("roll back")

// mixture is the share of each call in a hundred.
var mixture = []struct {
	percent int
	call    func(*caller, context.Context, int) error
}{
	{52, func(c *caller, ctx context.Context, n int) error { return c.allow(ctx, n, 1) }},
	{8, func(c *caller, ctx context.Context, n int) error { return c.allow(ctx, n, float64(2+c.random.IntN(4))) }},
	{6, (*caller).allowUpTo},
	{4, (*caller).look},
	{4, (*caller).charge},
	{4, (*caller).giveBack},
	{7, (*caller).reserve},
	{4, (*caller).once},
	{4, (*caller).allowAll},
	{4, (*caller).transaction},
	{3, (*caller).operate},
}

// mixed sends a request of the mixture for a key.
func (c *caller) mixed(ctx context.Context, n int) error {
	at := c.random.IntN(100)
	for _, m := range mixture {
		if at -= m.percent; at < 0 {
			return m.call(c, ctx, n)
		}
	}
	return c.allow(ctx, n, 1)
}

// answered sends a request, records how long it took and until when the key's row is in
// use.
func (c *caller) answered(n int, call func() (limiter.Result, error)) (limiter.Result, error) {
	r, err := c.timed(call)
	if err == nil {
		c.keys.noteResult(n, r)
	}
	return r, err
}

func (c *caller) allow(ctx context.Context, n int, cost float64) error {
	_, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.AllowN(ctx, policyOf(n), keyName(n), cost) })
	return err
}

func (c *caller) allowUpTo(ctx context.Context, n int) error {
	_, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.AllowUpTo(ctx, policyOf(n), keyName(n), 5) })
	return err
}

func (c *caller) look(ctx context.Context, n int) error {
	_, err := c.timed(func() (limiter.Result, error) { return c.limiter.Check(ctx, policyOf(n), keyName(n), 1) })
	return err
}

func (c *caller) charge(ctx context.Context, n int) error {
	_, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.Charge(ctx, policyOf(n), keyName(n), 1) })
	return err
}

// returns reports whether a key's policy gives units back: a queue does not.
func returns(n int) bool { return policyOf(n).Algorithm != limiter.LeakyBucketQueue }

// giveBack refunds a unit, or undoes a request.
func (c *caller) giveBack(ctx context.Context, n int) error {
	if !returns(n) {
		return c.allow(ctx, n, 1)
	}
	p, key := policyOf(n), keyName(n)
	if c.random.IntN(2) == 0 {
		_, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.Refund(ctx, p, key, 1) })
		return err
	}
	r, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.Allow(ctx, p, key) })
	if err != nil || !r.Allowed {
		return err
	}
	_, err = c.answered(n, func() (limiter.Result, error) { return c.limiter.Undo(ctx, p, key, r) })
	return err
}

// reserve reserves units, and then settles them, cancels them or leaves them open.
func (c *caller) reserve(ctx context.Context, n int) error {
	if !returns(n) {
		return c.allow(ctx, n, 1)
	}
	const ttl = 10 * time.Minute
	var held limiter.Reservation
	_, err := c.answered(n, func() (_ limiter.Result, err error) {
		held, err = c.limiter.Reserve(ctx, policyOf(n).Request(keyName(n), 3), ttl)
		return held.Result, err
	})
	if err != nil || held.ID == "" {
		return err
	}
	c.keys.note(n, held.Expires) // until it has ended the row stays, whatever it counts
	switch c.random.IntN(4) {
	case 0:
		return nil // left open
	case 1:
		_, err = c.timed(func() (limiter.Result, error) { return limiter.Result{}, c.limiter.Cancel(ctx, held.ID) })
	default:
		_, err = c.answered(n, func() (limiter.Result, error) { return c.limiter.Settle(ctx, held.ID, float64(c.random.IntN(5))) })
	}
	if errors.Is(err, limiter.ErrReservationEnded) && c.clock.Now().After(held.Expires) {
		return nil
	}
	return err
}

// once sends a request with an idempotency key twice.
func (c *caller) once(ctx context.Context, n int) error {
	request := policyOf(n).Request(keyName(n), 1)
	c.serial += callers
	request.IdempotencyKey = strconv.Itoa(c.serial)
	for range 2 {
		if _, err := c.answered(n, func() (limiter.Result, error) { return c.limiter.Do(ctx, request) }); err != nil {
			return err
		}
	}
	return nil
}

// allowAll requests two keys at once.
func (c *caller) allowAll(ctx context.Context, n int) error {
	other, _ := c.keys.draw(c.zipf)
	both := []int{n, other}
	var all limiter.Results
	_, err := c.timed(func() (first limiter.Result, err error) {
		all, err = c.limiter.AllowAll(ctx, policyOf(n).Request(keyName(n), 1), policyOf(other).Request(keyName(other), 1))
		if err == nil {
			first = all.PerRequest[0]
		}
		return first, err
	})
	for i, r := range all.PerRequest {
		if r.Source != limiter.SourceSkipped {
			c.keys.noteResult(both[i], r)
		}
	}
	return err
}

// transaction takes a limit in an application's transaction, and rolls one of four back.
func (c *caller) transaction(ctx context.Context, n int) error {
	_, err := c.answered(n, func() (limiter.Result, error) { return c.inTx(ctx, policyOf(n), keyName(n), c.random.IntN(4) == 0) })
	if errors.Is(err, errRollBack) {
		return nil
	}
	return err
}

func (c *caller) inTx(ctx context.Context, p limiter.Policy, key string, back bool) (r limiter.Result, err error) {
	err = limiter.RunTx(ctx, c.limiter, c.pool, nil, func(_ pgx.Tx, limits *limiter.Tx) (err error) {
		if r, err = limits.Allow(ctx, p, key); err == nil && back {
			err = errRollBack
		}
		return err
	})
	return r, err
}

// operate does what an operator does: blocks a key, lifts the block, looks or resets.
func (c *caller) operate(ctx context.Context, n int) error {
	p, key := policyOf(n), keyName(n)
	_, err := c.timed(func() (r limiter.Result, err error) {
		switch c.random.IntN(4) {
		case 0:
			err = c.limiter.Block(ctx, p, key, block)
			c.keys.note(n, c.clock.Now().Add(block))
		case 1:
			err = c.limiter.Unblock(ctx, p, key)
		case 2:
			err = c.limiter.Reset(ctx, p, key)
		case 3:
			_, err = c.limiter.Usage(ctx, p, key)
		}
		return r, err
	})
	return err
}

// watch sends a request for a watched key, and records what it admitted.
func (c *caller) watch(ctx context.Context, w *watched) error {
	if w.full() {
		return nil
	}
	verb := c.random.IntN(5)
	r, err := c.timed(func() (limiter.Result, error) {
		switch verb {
		case 0:
			return c.limiter.AllowUpTo(ctx, w.policy, w.key, 4)
		case 1:
			return c.inTx(ctx, w.policy, w.key, c.random.IntN(4) == 0)
		case 2:
			all, err := c.limiter.AllowAll(ctx, w.policy.Request(w.key, 2))
			if err != nil {
				return limiter.Result{}, err
			}
			return all.PerRequest[0], nil
		case 3:
			c.serial += callers
			request := w.policy.Request(w.key, 1)
			request.IdempotencyKey = strconv.Itoa(c.serial)
			return c.limiter.Do(ctx, request)
		}
		return c.limiter.Allow(ctx, w.policy, w.key)
	})
	if errors.Is(err, errRollBack) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watched key: %w", err)
	}
	w.record(r)
	return nil
}
