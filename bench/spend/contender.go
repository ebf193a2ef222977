package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// tables: those of the application, and those in which a bare upsert counts, stored as the
// limiter's tables are.
const tables = `
CREATE TABLE spend_orders (account text NOT NULL, cents bigint NOT NULL);
CREATE TABLE spend_bare (
    n      float8 NOT NULL,
    policy text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (policy, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 1);`

const (
	insertOrder = `INSERT INTO spend_orders (account, cents) VALUES ($1, $2)`
	bareUpsert  = `INSERT INTO spend_bare AS t (policy, key, n) VALUES ($1, $2, 1)
		ON CONFLICT (policy, key) DO UPDATE SET n = t.n + 1 RETURNING n`
	bareUsed = `SELECT coalesce(sum(n), 0)::float8 FROM spend_bare WHERE policy = $1`
)

// contender is one of the ways that a cell compares.
type contender struct {
	ID   string
	What string
	// decide counts one unit for each key, in a transaction with the cell's other
	// statements. It calls timed with the time of the counting alone, if it is measured.
	decide func(ctx context.Context, e *env, keys []string, timed func(time.Duration)) error
	// used returns the units counted in total.
	used func(ctx context.Context, e *env) (float64, error)
}

// env is what contenders decide on.
type env struct {
	pool    *pgxpool.Pool
	limiter *limiter.Limiter
	policy  limiter.Policy
	keys    []string
}

// decisionTimeout is far above the time of a decision, so that one slow moment of the disk
// shows in the figures and ends no decision.
const decisionTimeout = 30 * time.Second

// policy allows everything and leaks next to nothing, so that levels count.
func policy(name string, d limiter.Durability) limiter.Policy {
	return limiter.Policy{
		Name: name, Algorithm: limiter.TokenBucket,
		Limit: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 1e9, Durability: d,
	}
}

// An order and its count in one transaction: four round trips.
var (
	orderBare = contender{
		ID: "order, bare", What: "BEGIN; INSERT of an order; bare upsert; COMMIT",
		decide: func(ctx context.Context, e *env, keys []string, timed func(time.Duration)) error {
			return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, insertOrder, keys[0], 1); err != nil {
					return err
				}
				start := time.Now()
				defer func() { timed(time.Since(start)) }()
				return upsert(ctx, tx, e, keys[0])
			})
		},
		used: usedBare,
	}
	orderSpend = contender{
		ID: "order, spend", What: "BEGIN; INSERT of an order; `InTx(tx).AllowN`; COMMIT",
		decide: func(ctx context.Context, e *env, keys []string, timed func(time.Duration)) error {
			return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, insertOrder, keys[0], 1); err != nil {
					return err
				}
				start := time.Now()
				r, err := e.limiter.InTx(tx).AllowN(ctx, e.policy, keys[0], 1)
				timed(time.Since(start))
				return allowed(r.Allowed, err)
			})
		},
		used: usedLimits,
	}
)

// Two keys at once.
var (
	twoBare = contender{
		ID: "two, bare", What: "BEGIN; two bare upserts in the order of their keys; COMMIT: four round trips",
		decide: func(ctx context.Context, e *env, keys []string, _ func(time.Duration)) error {
			sort.Strings(keys)
			return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
				for _, key := range keys {
					if err := upsert(ctx, tx, e, key); err != nil {
						return err
					}
				}
				return nil
			})
		},
		used: usedBare,
	}
	twoAll = contender{
		ID: "two, AllowAll", What: "`AllowAll` of the two: one round trip",
		decide: func(ctx context.Context, e *env, keys []string, _ func(time.Duration)) error {
			all, err := e.limiter.AllowAll(ctx, e.policy.Request(keys[0], 1), e.policy.Request(keys[1], 1))
			return allowed(all.Allowed, err)
		},
		used: usedLimits,
	}
	twoInside = contender{
		ID: "two, AllowAll inside", What: "BEGIN; `InTx(tx).AllowAll` of the two; COMMIT: four round trips, each row written twice",
		decide: func(ctx context.Context, e *env, keys []string, _ func(time.Duration)) error {
			return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
				all, err := e.limiter.InTx(tx).AllowAll(ctx, e.policy.Request(keys[0], 1), e.policy.Request(keys[1], 1))
				return allowed(all.Allowed, err)
			})
		},
		used: usedLimits,
	}
)

func upsert(ctx context.Context, tx pgx.Tx, e *env, key string) error {
	var n float64
	return tx.QueryRow(ctx, bareUpsert, e.policy.Name, key).Scan(&n)
}

func allowed(ok bool, err error) error {
	if err == nil && !ok {
		err = fmt.Errorf("denied, though the limit was far")
	}
	return err
}

func usedBare(ctx context.Context, e *env) (n float64, err error) {
	err = e.pool.QueryRow(ctx, bareUsed, e.policy.Name).Scan(&n)
	return n, err
}

func usedLimits(ctx context.Context, e *env) (n float64, err error) {
	for _, key := range e.keys {
		r, err := e.limiter.Check(ctx, e.policy, key, 0)
		if err != nil {
			return 0, err
		}
		n += r.Level
	}
	return n, nil
}

// pair returns two different random keys.
func pair(keys []string) []string {
	i, j := rand.IntN(len(keys)), rand.IntN(len(keys)-1)
	if j >= i {
		j++
	}
	return []string{keys[i], keys[j]}
}
