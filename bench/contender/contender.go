// Package contender has the limiters that are compared: pglimit, other published or common
// ways of limiting, and a bare upsert as the lower bound in PostgreSQL. Each family has a
// file.
package contender

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pglimit/pglimit/bench/processor"
	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/migrations"
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

// Decider decides by one rule.
type Decider interface {
	// Decide requests one unit.
	Decide(ctx context.Context, key string) (allowed bool, err error)
	// Used returns the key's units in use.
	Used(ctx context.Context, key string) (float64, error)
}

// Contender is one way of limiting.
type Contender struct {
	// ID is its name in tables and for -contenders.
	ID string
	// What describes in a line how it decides, Server where, and Keeps what is on disk
	// when it has answered.
	What, Server, Keeps string
	// Commit is the synchronous_commit that its sessions need; "" on Redis.
	Commit string
	// State identifies its counters; contenders with the same State share them.
	State string
	// Aside means that no goal names it. It is measured with some and many callers only.
	Aside bool
	// Open creates a Decider, which need not be closed.
	Open func(*Env, Rule) (Decider, error)
}

// The values of Contender.Server and Keeps.
const (
	onPostgres = "PostgreSQL"
	onRedis    = "Redis"
	nothing    = "nothing"
	soon       = "all, within 0.6 s" // three times wal_writer_delay
	everything = "all"
)

// Env is the servers that contenders use.
type Env struct {
	Postgres *servers.Postgres
	Redis    *servers.Redis
	GoRedis  *redis.Client  // with its default pool
	Rueidis  rueidis.Client // with its default pipelining
}

// NewEnv connects to the servers and creates the tables. Close disconnects.
func NewEnv(ctx context.Context, p *servers.Postgres, r *servers.Redis) (_ *Env, err error) {
	e := &Env{Postgres: p, Redis: r}
	e.GoRedis = redis.NewClient(&redis.Options{Addr: r.Addr, Password: r.Password})
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	e.Rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.Addr}, Password: r.Password})
	if err != nil {
		return nil, fmt.Errorf("rueidis: %w", err)
	}
	if err := migrations.Up(ctx, p.Pool); err != nil {
		return nil, err
	}
	for _, sql := range []string{bareTable, leakyTable} {
		if _, err := p.Pool.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// Processor returns the clock of the server that a contender decides in.
func (e *Env) Processor(c Contender) processor.Clock {
	if c.Server == onRedis {
		return e.Redis.Processor
	}
	return e.Postgres.Processor
}

// Close disconnects from Redis.
func (e *Env) Close() {
	_ = e.GoRedis.Close() // nothing is lost
	if e.Rueidis != nil {
		e.Rueidis.Close()
	}
}

// All is every contender except those of different amounts and of the sliding log. Contenders that are compared
// with each other are adjacent, so that little time lies between them.
func All() []Contender {
	return []Contender{
		bare("bare-off", "off", soon),
		single("single-relaxed", relaxed),
		batching("batch-relaxed", relaxed),
		luaBucket,
		redisRate,
		throttledGCRA,
		leakyDelete,
		bare("bare-on", "on", everything),
		single("single-durable", durable),
		batching("batch-durable", durable),
	}
}
