package faults

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

const (
	century   = 100 * 365 * 24 * time.Hour
	plenty    = 1e7 // a limit that the load does not reach
	places    = 24  // keys of each policy whose limit is not reached
	tightKeys = 2
)

// The load's policies, of every algorithm. No window of the first three ends during a test,
// and nothing leaks: everything counted stays counted. The limits of the last are reached
// all the time.
var (
	// budgets are for requests outside of transactions.
	budgets = everyAlgorithm("budget", never)
	relaxed = everyAlgorithm("relaxed", func(p *limiter.Policy) {
		never(p)
		p.Durability = limiter.Relaxed
	})
	// orders are for requests in transactions that insert a row besides.
	orders = everyAlgorithm("orders", never)
	// tight let 20 units a second pass. The windows are those of the clock: a request
	// without an answer may begin another window, and nobody would know.
	tight = everyAlgorithm("tight", func(p *limiter.Policy) {
		p.Limit, p.Period, p.Aligned = 20, time.Second, p.Algorithm == limiter.FixedWindow
	})
)

// closed admits nothing of more than a unit.
var closed = limiter.Policy{Name: "closed", Algorithm: limiter.GCRA, Limit: 1, Period: century}

func never(p *limiter.Policy) {
	p.Limit, p.Period = plenty, century
	switch p.Algorithm {
	case limiter.LeakyBucket, limiter.LeakyBucketQueue, limiter.TokenBucket, limiter.GCRA:
		p.Limit, p.Burst = 1, plenty
	}
}

func everyAlgorithm(name string, set func(*limiter.Policy)) (all []limiter.Policy) {
	for _, a := range limiter.Algorithms() {
		p := limiter.Policy{Name: fmt.Sprint(name, "-", a), Algorithm: a}
		set(&p)
		all = append(all, p)
	}
	return all
}

// anyOf draws a policy and a key of it.
func anyOf(policies []limiter.Policy, keys int) (limiter.Policy, string) {
	return policies[rand.IntN(len(policies))], fmt.Sprint("key-", rand.IntN(keys))
}

// reservable reports whether the load reserves units of a key of a budget: of every algorithm
// but the queue, and of every second key of a log.
func reservable(p limiter.Policy, key string) bool {
	switch p.Algorithm {
	case limiter.LeakyBucketQueue:
		return false
	case limiter.SlidingWindowLog:
		return key[len(key)-1]%2 == 0
	}
	return true
}

func units() float64 { return float64(1 + rand.IntN(5)) }
