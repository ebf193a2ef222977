package contender

import (
	"context"
	"sync/atomic"

	"github.com/pglimit/pglimit/limiter"
)

// AmountDecider is a Decider whose requests have different amounts instead of one unit.
type AmountDecider interface {
	Decider
	// Allowed returns the sum of the amounts that it allowed.
	Allowed() float64
}

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
	cents    atomic.Int64 // allowed
}

// Amounts are 1.01, 1.02 and so on, and then from the start: there are more of them than
// callers, so that no two requests at the same time are equal.
const (
	firstCents  = 101
	differently = 1000
)

func (d *amountDecider) Decide(ctx context.Context, key string) (bool, error) {
	cents := firstCents + (d.requests.Add(1)-1)%differently
	r, err := d.AllowN(ctx, d.Policy, key, float64(cents)/100)
	if r.Allowed {
		d.cents.Add(cents)
	}
	return r.Allowed, err
}

func (d *amountDecider) Allowed() float64 { return float64(d.cents.Load()) / 100 }
