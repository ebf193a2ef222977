package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// contender is one of the ways to decide. All wait for the disk but Relaxed.
type contender struct {
	ID, What string
	open     func(pool *pgxpool.Pool, name string) (decider, error)
}

// decider decides by one policy that allows everything.
type decider interface {
	decide(ctx context.Context, key string) (bool, error)
	// used returns the units counted of all these keys.
	used(ctx context.Context, keys []string) (float64, error)
}

var (
	naive = contender{"bare upsert", "an upsert that counts and does not limit, one for each request, synchronous_commit = on",
		func(pool *pgxpool.Pool, name string) (decider, error) { return &bareDecider{pool, name}, nil }}
	durable = ours("pglimit, Durable", limiter.Durable)
	relaxed = ours("pglimit, Relaxed", limiter.Relaxed)
)

func ours(id string, d limiter.Durability) contender {
	return contender{id, "token bucket, with its defaults, no deny cache", func(pool *pgxpool.Pool, name string) (decider, error) {
		l, err := limiter.New(pool, &limiter.Config{DisableDenyCache: true, Timeout: decisionTimeout})
		return &limiterDecider{l, limiter.Policy{
			Name: name, Algorithm: limiter.TokenBucket, // leaks next to nothing, so that levels count
			Limit: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 1e9, Durability: d,
		}}, err
	}}
}

// decisionTimeout is far above the time of a decision, so that one slow moment of the disk
// shows in the figures and ends no decision.
const decisionTimeout = 30 * time.Second

type limiterDecider struct {
	limiter *limiter.Limiter
	policy  limiter.Policy
}

func (d *limiterDecider) decide(ctx context.Context, key string) (bool, error) {
	r, err := d.limiter.Allow(ctx, d.policy, key)
	return r.Allowed, err
}

func (d *limiterDecider) used(ctx context.Context, keys []string) (sum float64, err error) {
	for _, key := range keys {
		r, err := d.limiter.Check(ctx, d.policy, key, 0)
		if err != nil {
			return 0, err
		}
		sum += r.Level
	}
	return sum, nil
}

// bareTable is stored as the limiter's own tables are.
const bareTable = `
CREATE TABLE load_bare (
    n      bigint NOT NULL,
    policy text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (policy, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1)`

type bareDecider struct {
	pool   *pgxpool.Pool
	policy string
}

func (d *bareDecider) decide(ctx context.Context, key string) (bool, error) {
	var n int64
	err := d.pool.QueryRow(ctx, `
		INSERT INTO load_bare AS t (policy, key, n) VALUES ($1, $2, 1)
		ON CONFLICT (policy, key) DO UPDATE SET n = t.n + 1 RETURNING n`, d.policy, key).Scan(&n)
	return err == nil, err
}

func (d *bareDecider) used(ctx context.Context, keys []string) (n float64, err error) {
	err = d.pool.QueryRow(ctx, `SELECT coalesce(sum(n), 0)::float8 FROM load_bare WHERE policy = $1 AND key = ANY ($2)`,
		d.policy, keys).Scan(&n)
	return n, err
}

// count compares what was counted with what was allowed.
func count(ctx context.Context, d decider, keys []string, allowed int64) error {
	n, err := d.used(ctx, keys)
	if err != nil {
		return err
	}
	if got := int64(math.Round(n)); got != allowed {
		return fmt.Errorf("%s and %d more were counted %d times and allowed %d times", keys[0], len(keys)-1, got, allowed)
	}
	return nil
}
