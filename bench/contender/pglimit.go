package contender

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// ours is pglimit, which uses the same rows with all settings. Its sessions have
// synchronous_commit = on; Relaxed statements turn it off.
func ours(id string, batches bool, durability limiter.Durability) Contender {
	return Contender{
		ID: id, Commit: "on",
		Open: func(e *Env, r Rule) (Decider, error) {
			return NewLimiter(e.Pool, batches, r.Policy(durability))
		},
	}
}

// Policy returns the rule as a token bucket.
func (r Rule) Policy(d limiter.Durability) limiter.Policy {
	return limiter.Policy{
		Name: r.Name, Algorithm: limiter.TokenBucket,
		Limit: float64(r.Limit), Period: r.Period, Burst: float64(r.Burst), Durability: d,
	}
}

// NewLimiter creates a limiter without a deny cache, so that the database makes every
// decision. The timeout outlasts any stall of the disk.
func NewLimiter(pool *pgxpool.Pool, batches bool, p limiter.Policy) (*Limiter, error) {
	l, err := limiter.New(pool, &limiter.Config{
		Timeout: time.Minute, DisableBatching: !batches, DisableDenyCache: true,
	})
	return &Limiter{l, p}, err
}

// Limiter is a Decider of pglimit.
type Limiter struct {
	*limiter.Limiter
	Policy limiter.Policy
}

// Decide requests one unit.
func (d *Limiter) Decide(ctx context.Context, key string) (float64, error) {
	r, err := d.Allow(ctx, d.Policy, key)
	return r.Granted, err
}

// Used returns the key's level.
func (d *Limiter) Used(ctx context.Context, key string) (float64, error) {
	r, err := d.Check(ctx, d.Policy, key, 0)
	return r.Level, err
}
