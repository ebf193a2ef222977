package contender

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/pglimit/pglimit/limiter"
)

// LogLimits are the limits at which sliding logs are measured.
var LogLimits = []int{100, 1000, 10_000, 100_000}

// LogRule is a sliding log's.
func LogRule(limit int) Rule {
	return Rule{Name: "log", Limit: limit, Period: time.Minute, Burst: limit}
}

// LogDecider is a Decider with a log.
type LogDecider interface {
	Decider
	// Charge gives each key's log n entries, spread over the period that ends now, and
	// deletes every other key.
	Charge(ctx context.Context, keys []string, n int) error
}

// Logs is every contender of the sliding log. Their Deciders are LogDeciders.
func Logs() []Contender {
	return []Contender{
		ourLog("log-single", false),
		ourLog("log-batch", true),
		sortedSet,
	}
}

func ourLog(id string, batches bool) Contender {
	return Contender{
		ID: id, Commit: "on",
		Open: func(e *Env, r Rule) (Decider, error) {
			d, err := NewLimiter(e.Pool, batches, limiter.Policy{
				Name: r.Name, Algorithm: limiter.SlidingWindowLog,
				Limit: float64(r.Limit), Period: r.Period, Durability: limiter.Relaxed,
			})
			return &logDecider{d, e}, err
		},
	}
}

type logDecider struct {
	*Limiter
	env *Env
}

// Charge writes the rows as if their entries had been allowed one by one, which would take
// minutes.
func (d *logDecider) Charge(ctx context.Context, keys []string, n int) error {
	if _, err := d.env.Pool.Exec(ctx, `TRUNCATE pglimit_sliding_window_log`); err != nil {
		return err
	}
	_, err := d.env.Pool.Exec(ctx, `
		WITH clock AS MATERIALIZED (
			SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now_us
		), log AS MATERIALIZED (
			SELECT now_us, array_agg(now_us - $2::bigint + i * $2 / ($3::bigint + 1) ORDER BY i) AS entries, array_agg(i::float8 - 1 ORDER BY i) AS totals
			FROM clock, generate_series(1, $3) AS i GROUP BY now_us
		)
		INSERT INTO pglimit_sliding_window_log
			(base, total, capacity, period_us, keep_us, updated_at_us, blocked_until_us, expires_at_us, cost, granted, entries, totals, policy, key)
		SELECT 0, $3, $5, $2, $2, now_us, 0, now_us + $2, 1, 1, entries, totals, $1, key FROM log, unnest($4::text[]) AS key`,
		d.Policy.Name, d.Policy.Period.Microseconds(), n, keys, d.Policy.Limit)
	for _, key := range keys { // the first decision makes parts of a long log, which it would have
		if err == nil && n > 128 {
			_, err = d.Decide(ctx, key)
		}
	}
	return err
}

// logScript drops entries that have left the window, counts the rest, and adds one if
// there is room. A member must be unique: the caller names it.
const logScript = `
local now, period, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - period))
local used, taken = redis.call('ZCARD', KEYS[1]), 0
if used < limit then
  redis.call('ZADD', KEYS[1], ARGV[1], ARGV[4])
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(period / 1000)))
  used, taken = used + 1, 1
end
return {taken, limit - used}
`

var sortedSet = Contender{
	ID: "log-sorted-set", Redis: true,
	Open: func(e *Env, r Rule) (Decider, error) {
		return &sortedSetDecider{
			client: e.Rueidis, script: rueidis.NewLuaScript(logScript), period: r.Period.Microseconds(),
			periodText: strconv.FormatInt(r.Period.Microseconds(), 10), limit: strconv.Itoa(r.Limit),
		}, nil
	},
}

type sortedSetDecider struct {
	client            rueidis.Client
	script            *rueidis.Lua
	period            int64
	periodText, limit string
	last              atomic.Uint64 // names members
}

const sortedSetPrefix = "log:"

func (d *sortedSetDecider) Decide(ctx context.Context, key string) (float64, error) {
	now := strconv.FormatInt(time.Now().UnixMicro(), 10)
	member := now + "-" + strconv.FormatUint(d.last.Add(1), 36)
	return taken(d.script.Exec(ctx, d.client, []string{sortedSetPrefix + key}, []string{now, d.periodText, d.limit, member}))
}

func (d *sortedSetDecider) Used(ctx context.Context, key string) (float64, error) {
	since := strconv.FormatInt(time.Now().UnixMicro()-d.period+1, 10)
	n, err := d.client.Do(ctx, d.client.B().Zcount().Key(sortedSetPrefix+key).Min(since).Max("+inf").Build()).AsInt64()
	return float64(n), err
}

func (d *sortedSetDecider) Charge(ctx context.Context, keys []string, n int) error {
	if err := d.client.Do(ctx, d.client.B().Flushdb().Build()).Error(); err != nil {
		return err
	}
	now := time.Now().UnixMicro()
	entries := make([]string, 0, 2*n)
	for i := range int64(n) {
		at := strconv.FormatInt(now-d.period+(i+1)*d.period/int64(n+1), 10)
		entries = append(entries, at, fmt.Sprint(at, "-filled"))
	}
	var commands rueidis.Commands
	for _, key := range keys {
		commands = append(commands,
			d.client.B().Arbitrary("ZADD").Keys(sortedSetPrefix+key).Args(entries...).Build(),
			d.client.B().Pexpire().Key(sortedSetPrefix+key).Milliseconds(d.period/1000).Build())
	}
	for _, r := range d.client.DoMulti(ctx, commands...) {
		if err := r.Error(); err != nil {
			return err
		}
	}
	return nil
}
