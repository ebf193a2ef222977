package contender

import (
	"context"
	"sync/atomic"
)

// Amounts is every contender whose requests all have different amounts, as the orders of
// one account have. Their Deciders are AmountDeciders.
func Amounts() []Contender {
	return []Contender{
		amounts("amounts-single", "pglimit, token bucket, amounts that differ, one statement per decision, Durable", false),
		amounts("amounts-batch", "pglimit, token bucket, amounts that differ, batching, Durable", true),
	}
}

// AmountDecider is a Decider whose requests have different amounts instead of one unit.
type AmountDecider interface {
	Decider
	// Allowed returns the sum of the amounts that it allowed.
	Allowed() float64
}

func amounts(id, what string, batches bool) Contender {
	c := ours(id, what, batches, durable)
	open := c.Open
	c.Open = func(e *Env, r Rule) (Decider, error) {
		d, err := open(e, r)
		if err != nil {
			return nil, err
		}
		return &amountDecider{limiterDecider: d.(*limiterDecider)}, nil
	}
	return c
}

type amountDecider struct {
	*limiterDecider
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
	r, err := d.limiter.AllowN(ctx, d.policy, key, float64(cents)/100)
	if r.Allowed {
		d.cents.Add(cents)
	}
	return r.Allowed, err
}

func (d *amountDecider) Allowed() float64 { return float64(d.cents.Load()) / 100 }

// Exact checks what a new AmountDecider allowed of so many requests at a limit: as much as
// fits, so that not even the largest amount is left.
func Exact(d AmountDecider, limit float64, requests int) bool {
	const rounding = 1e-6
	largest := float64(firstCents+requests-1) / 100
	return d.Allowed() <= limit+rounding && d.Allowed() > max(0, limit-largest)
}
