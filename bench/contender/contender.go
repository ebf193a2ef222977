// Package contender has the limiters that are compared: pglimit, other published or common
// ways of limiting, and a bare upsert as the lower bound in PostgreSQL. Each family has a
// file.
package contender

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pglimit/pglimit/bench/proc"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/limiter"
)

// Rule is the limit for a contender: Limit units per Period, and Burst at once. Name is
// the policy's, for contenders with policies.
type Rule struct {
	Name   string
	Limit  int
	Period time.Duration
	Burst  int
}

// Far is a limit so high that no request is denied, and a period so long that no row or
// key disappears during a run.
var Far = Rule{Name: "bench", Limit: 1, Period: time.Second, Burst: 1e9}

// Counting is a Rule that denies nothing either, and forgets next to nothing, so that a
// key's units in use are its requests. It is for PostgreSQL only.
func Counting(name string) Rule {
	return Rule{Name: name, Limit: 1, Period: 100 * 365 * 24 * time.Hour, Burst: 1e9}
}

// Decider decides by one rule.
type Decider interface {
	// Decide makes a request and returns the units that were allowed, or 0.
	Decide(ctx context.Context, key string) (units float64, err error)
	// Used returns the key's units in use.
	Used(ctx context.Context, key string) (float64, error)
}

// Contender is one way of limiting.
type Contender struct {
	// ID is its name in tables and for -only.
	ID string
	// Redis means that it decides in Redis, not in PostgreSQL.
	Redis bool
	// Commit is the synchronous_commit that its sessions need; "" on Redis.
	Commit string
	// Amounts means that its requests have different amounts instead of one unit. It is
	// measured on a hot key with many callers only.
	Amounts bool
	// Open creates a Decider, which need not be closed.
	Open func(*Env, Rule) (Decider, error)
}

// Env is the servers that contenders use.
type Env struct {
	Postgres *servers.Postgres
	Pool     *pgxpool.Pool // to PostgreSQL
	Redis    *Redis
	GoRedis  *redis.Client  // with its default pool
	Rueidis  rueidis.Client // with its default pipelining
}

// NewEnv starts the servers, connects to them and creates the tables. Close stops them.
func NewEnv(ctx context.Context) (_ *Env, err error) {
	e := new(Env)
	defer func() {
		if err != nil {
			_ = e.Close() // the first error is reported
		}
	}()
	if e.Postgres, err = servers.StartPostgres(ctx, nil); err != nil {
		return nil, err
	}
	if e.Redis, err = StartRedis(ctx); err != nil {
		return nil, err
	}
	e.GoRedis = redis.NewClient(&redis.Options{Addr: e.Redis.Addr, Password: e.Redis.Password})
	e.Rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{e.Redis.Addr}, Password: e.Redis.Password})
	if err != nil {
		return nil, fmt.Errorf("rueidis: %w", err)
	}
	if e.Pool, err = e.Postgres.NewDatabase(ctx, "bench", servers.PoolSize); err != nil {
		return nil, err
	}
	_, err = e.Pool.Exec(ctx, bareTable)
	return e, err
}

// Processor returns the clock of the server that a contender decides in.
func (e *Env) Processor(c Contender) proc.Clock {
	if c.Redis {
		return e.Redis.Processor
	}
	return proc.Tree(e.Postgres.Postmaster)
}

// Close disconnects and stops the servers.
func (e *Env) Close() error {
	if e.Rueidis != nil {
		e.Rueidis.Close()
		_ = e.GoRedis.Close() // nothing is lost
	}
	if e.Redis != nil {
		e.Redis.Close()
	}
	if e.Postgres == nil {
		return nil
	}
	return e.Postgres.Close()
}

// Contenders that further measurements compare.
var (
	BareOn       = bare("bare-on", "on")
	BatchDurable = ours("batch-durable", true, limiter.Durable)
	BatchRelaxed = ours("batch-relaxed", true, limiter.Relaxed)
)

// Stores is a contender for each way to keep counters.
func Stores() []Contender { return []Contender{BareOn, BatchRelaxed, luaBucket, redisRate} }

// All is every contender except those of the sliding log. Contenders that are compared with
// each other are adjacent, so that little time lies between them.
func All() []Contender {
	return []Contender{
		bare("bare-off", "off"),
		ours("single-relaxed", false, limiter.Relaxed),
		BatchRelaxed,
		luaBucket,
		redisRate,
		BareOn,
		ours("single-durable", false, limiter.Durable),
		BatchDurable,
		amounts("amounts-single", false),
		amounts("amounts-batch", true),
	}
}
