package contender

import (
	"context"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// mode is a durability and its description in the tables.
type mode struct {
	durability limiter.Durability
	name       string
	keeps      string
}

var (
	relaxed = mode{limiter.Relaxed, "Relaxed", soon}
	durable = mode{limiter.Durable, "Durable", everything}
)

// single is pglimit with one statement per decision.
func single(id string, m mode) Contender {
	return ours(id, "pglimit, token bucket, one statement per decision, "+m.name, false, m)
}

// batching is pglimit with its defaults.
func batching(id string, m mode) Contender {
	return ours(id, "pglimit, token bucket, batching, "+m.name, true, m)
}

// ours is pglimit, which uses the same rows with all settings. Its sessions have
// synchronous_commit = on; Relaxed statements turn it off.
func ours(id, what string, batches bool, m mode) Contender {
	return Contender{
		ID: id, What: what, Server: onPostgres, Keeps: m.keeps, Commit: "on", State: "pglimit",
		Open: func(e *Env, r Rule) (Decider, error) {
			return newLimiter(e, batches, limiter.Policy{
				Name: r.Name, Algorithm: limiter.TokenBucket,
				Limit: float64(r.Limit), Period: r.Period, Burst: float64(r.Burst),
				Durability: m.durability,
			})
		},
	}
}

// newLimiter creates a limiter without a deny cache, so that the database makes every
// decision. The timeout outlasts any stall of the disk.
func newLimiter(e *Env, batches bool, p limiter.Policy) (*limiterDecider, error) {
	l, err := limiter.New(e.Postgres.Pool, &limiter.Config{
		Timeout: time.Minute, DisableBatching: !batches, DisableDenyCache: true,
	})
	return &limiterDecider{l, p}, err
}

type limiterDecider struct {
	limiter *limiter.Limiter
	policy  limiter.Policy
}

func (d *limiterDecider) Decide(ctx context.Context, key string) (bool, error) {
	r, err := d.limiter.Allow(ctx, d.policy, key)
	return r.Allowed, err
}

func (d *limiterDecider) Used(ctx context.Context, key string) (float64, error) {
	r, err := d.limiter.Check(ctx, d.policy, key, 0)
	return r.Level, err
}
