package contender

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/pglimit/limiter"
)

// amounts is pglimit with requests that all have different amounts, as the orders of one
// account have.
func amounts(id string, batches bool) Contender {
	c := ours(id, batches, limiter.Durable)
	c.Amounts = true
	open := c.Open
	c.Open = func(e *Env, r Rule) (Decider, error) {
		d, err := open(e, r)
		if err != nil {
			return nil, err
		}
		return &amountDecider{Limiter: d.(*Limiter)}, nil
	}
	return c
}

type amountDecider struct {
	*Limiter
	requests atomic.Int64
}

// Decide requests 1.01, 1.02 and so on, and then from the start: there are more amounts than
// callers, so that no two requests at the same time are equal.
func (d *amountDecider) Decide(ctx context.Context, key string) (float64, error) {
	const firstCents, differently = 101, 1000
	cents := firstCents + (d.requests.Add(1)-1)%differently
	r, err := d.AllowN(ctx, d.Policy, key, float64(cents)/100)
	return r.Granted, err
}
