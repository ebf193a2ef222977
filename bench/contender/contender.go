// Package contender holds what is set side by side: this limiter, the ways of
// limiting that others have written down or published, and a bare upsert as
// the least that PostgreSQL can do. Each family has a file.
package contender

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/pglimit/pglimit/bench/servers"
	"github.com/pglimit/pglimit/migrations"
)

// Rule is what a contender is to limit to: Limit units per Period, and Burst
// at once. Name is the policy's, for those that have policies.
type Rule struct {
	Name   string
	Limit  int
	Period time.Duration
	Burst  int
}

// Far is so far a limit that nobody is denied, and so long a time until a
// bucket is full again that no row or key goes away during a run: every
// decision then is the work of an everyday one.
var Far = Rule{Name: "bench", Limit: 1, Period: time.Second, Burst: 1e9}

// Decider decides by one rule.
type Decider interface {
	// Decide asks for one unit.
	Decide(ctx context.Context, key string) (allowed bool, err error)
	// Used is how many units the key has in use.
	Used(ctx context.Context, key string) (float64, error)
}

// Contender is one way of limiting.
type Contender struct {
	// ID names it in tables and for -only.
	ID string
	// What says in a line how it decides, Server on what, and Keeps what is on
	// disk when it has answered.
	What, Server, Keeps string
	// Commit is the synchronous_commit that its sessions need; "" on Redis.
	Commit string
	// State names what it counts in; contenders of the same State share it.
	State string
	// MostOnOneKey is how many callers it may have on one key; 0 is any number.
	MostOnOneKey int
	// Open makes a Decider, which needs no end.
	Open func(*Env, Rule) (Decider, error)
}

// What Contender.Server and Keeps say.
const (
	onPostgres = "PostgreSQL"
	onRedis    = "Redis"
	nothing    = "nothing"
	soon       = "all, within 0.6 s" // three times wal_writer_delay
	everything = "all"
)

// Env is what contenders decide on.
type Env struct {
	Postgres *servers.Postgres
	GoRedis  *redis.Client  // with its default pool
	Rueidis  rueidis.Client // with its default pipelining
}

// NewEnv connects to the servers and makes the tables. Close disconnects.
func NewEnv(ctx context.Context, p *servers.Postgres, r *servers.Redis) (_ *Env, err error) {
	e := &Env{Postgres: p}
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

// Close disconnects from Redis.
func (e *Env) Close() {
	_ = e.GoRedis.Close() // nothing is lost
	if e.Rueidis != nil {
		e.Rueidis.Close()
	}
}

// All is every contender but those of the sliding log. Whose ratios are
// asked for stand beside each other, so that little time lies between them.
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
