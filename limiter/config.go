package limiter

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pglimit/pglimit/internal/keys"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/lease"
)

// Defaults of Config's fields, which each field's comment repeats.
const (
	defaultTimeout         = time.Second
	defaultBatchRows       = 256
	defaultBatchStatements = 2
	defaultMaxWaiting      = 16_384
	defaultIdempotencyTTL  = 24 * time.Hour
	defaultBreakAfter      = 10
	defaultBreakFor        = time.Second
	defaultDenyCacheTTL    = time.Second
	defaultDenyCacheKeys   = 65_536
	defaultLeaseKeys       = 4096
	defaultMaxKeys         = 1_000_000
)

// Config sets up a Limiter. The zero value and a nil *Config have the defaults that each
// field names. A Limiter copies its Config, so that the caller may change it afterwards.
// A negative number or duration and a short KeySecret are ErrInvalid: New and NewSQL return
// it, and so does every method of the Limiter that NewMemory returns.
type Config struct {
	// Timeout bounds how long one decision waits for the database, including retries
	// and the waits for its turn, a connection and a row's lock. Default: 1s. It does not
	// bound the sleep of Wait, nor methods in the caller's transaction. The end of a
	// caller's context ends its wait immediately, but not a statement in flight, which
	// Timeout ends. The server ends an AllowAll of this Limiter, and frees its rows, once
	// its client is silent for twice Timeout, from 1 to 30 s.
	Timeout time.Duration
	// DisableTimeout leaves decisions to the caller's context alone. Giving back the
	// units of a cancelled Wait is still bounded, by 1s.
	DisableTimeout bool

	// MaxWaiting is the largest number of callers that wait for the database. Default:
	// 16,384. A quarter of it, but at least 64, may wait for one key. Further callers get
	// ErrOverloaded.
	MaxWaiting int

	// BatchRows is the largest number of keys that one statement decides for concurrent
	// callers, and of requests of other methods that share a transaction. Default: 256. If
	// no statement is in flight, a caller sends its own immediately.
	BatchRows int
	// BatchStatements is the largest number of such statements in flight, for each
	// algorithm and durability. Default: 2. Another one is sent only for 8 waiting keys
	// or more. Each needs a connection of the pool. Statements for keys whose rows
	// other transactions have locked use up to a quarter of the pool's connections
	// more, at least one.
	BatchStatements int
	// DisableBatching sends one statement for each decision, in a separate transaction.
	DisableBatching bool

	// Sharding is how the tables are spread over several servers. Default: ShardingAuto, which
	// finds Citus by itself. NewMemory has no servers.
	Sharding Sharding

	// BreakAfter is the number of failures in a row that open the circuit breaker:
	// connections that fail or are refused, Config.Timeout, and a server that shuts down
	// or has no connection left. A cancelled context, waits for a row's lock or for a
	// connection of the pool, and answers that this process was too busy to read do not
	// count. Default: 10. While the breaker is open
	//   - all methods return an ErrUnavailable that wraps the last failure, without using
	//     the pool, and Policy.OnError applies; after a refused login it is an
	//     ErrMisconfigured, and without a connection left an ErrOverloaded;
	//   - one request every BreakFor is still sent, and any answer closes the breaker.
	//
	// Transactions and NewMemory have no breaker.
	BreakAfter int
	// BreakFor is the time between such requests. Default: 1s. If Now is set, it is
	// measured by Now.
	BreakFor time.Duration
	// DisableBreaker never opens the breaker.
	DisableBreaker bool

	// Policies, if not nil, have overrides for single keys: see package policies. Each
	// request's policy gets what the override of its Name and Key changes before anything
	// else. Default: nil.
	//
	//   - For an Unlimited key, Do, Allow, AllowN, AllowUpTo, DoWait, Wait, Check and Reserve
	//     pass without the database, even if the key is blocked: see SourceOverride. So do its
	//     requests in an AllowAll or WaitAll. A Reserve's ID ends without a change. All other
	//     methods act as without the override.
	//   - An override's Burst applies to buckets only. Without one, a bucket's Burst keeps its
	//     proportion to the Limit. The Limit is also the Burst of a window.
	//   - Until ends an override by Now, or else by this process's clock.
	Policies Policies

	// KeySecret, if not nil, makes the limiter store HMAC-SHA-256(secret, key) instead
	// of keys, for keys that are personal data or secrets. Default: nil, keys are
	// stored as they are. Use 32 random bytes. Fewer than 16, which includes an empty
	// value from an environment variable that is not set, are ErrInvalid. With another
	// secret all keys start from zero.
	KeySecret []byte
	// IdempotencyTTL is the least time for which an admission under a
	// Request.IdempotencyKey is remembered and an expired reservation can still be
	// settled or cancelled. Default: 24h. It is whole microseconds, at most a hundred
	// years; Reserve and requests with an IdempotencyKey check that.
	IdempotencyTTL time.Duration

	// DenyCacheTTL is the longest time for which this process repeats a denial without
	// the database: for Do, Allow, AllowN, DoWait, Wait, Reserve, AllowAll and WaitAll of
	// the same policy and key at an equal or larger cost. Default: 1s. A denial ends
	// earlier if its RetryAfter does.
	//
	//   - A Refund, Undo, Reset, Block or Unblock by this Limiter is visible immediately;
	//     in a transaction, from the call on.
	//   - Those by other processes, and reservations that ended or expired there, are
	//     visible after DenyCacheTTL.
	//   - Methods in a transaction, policies with a Calendar and requests with an
	//     IdempotencyKey always use the database.
	//
	// NewMemory has no such cache. See SourceCache.
	DenyCacheTTL time.Duration
	// DenyCacheKeys is the largest number of keys whose denials are remembered. Default:
	// 65,536. Each takes about 900 bytes and the length of the key: 60 MB in all with
	// short keys, 130 MB if all keys have the largest length, 1,024 bytes. The least
	// recently used key is evicted first.
	DenyCacheKeys int
	// DisableDenyCache sends each decision to the database.
	DisableDenyCache bool

	// LeaseKeys is the largest number of blocks of units that this process holds for policies
	// with a Lease: one or two for each hot key. Default: 4,096. Each takes about 1 kB.
	LeaseKeys int
	// DisableLeases decides every request against the key's row. The price of Policy.Lease
	// stays, since other processes may hold leases.
	DisableLeases bool

	// MaxKeys is the largest number of keys that NewMemory keeps, and the largest number
	// of reservations and of admissions under an IdempotencyKey that it remembers.
	// Default: 1,000,000. A key takes about 400 bytes and its length; a SlidingWindowLog
	// takes 16 bytes more for each decision of a period. math.MaxInt sets no bound.
	//
	//   - If there is no room for a new key, the key that has been idle for longest is
	//     forgotten, which changes no answer.
	//   - A key is idle if it has no units in use, no window that lasts, no block and no
	//     open reservation. A key in use is never forgotten.
	//   - If no key is idle, a request that needs a new one gets ErrOverloaded. OnError
	//     does not apply: else many keys would lift the limit of all new ones.
	//
	// New and NewSQL have no such bound: the janitor deletes empty rows. Theirs is for
	// policies that are FailLocal: the largest number of keys whose last answer is
	// remembered, and of those decided in memory. Default: 65,536.
	MaxKeys int

	// Now is the clock, for tests. Default: the database's clock, and this machine's for
	// NewMemory. It may be called from several goroutines at once.
	Now func() time.Time
	// Observe, if set, is called after each call of every method that takes a key or a
	// reservation, on the caller's goroutine, so it must not block. A Wait is observed when
	// its turn is known, before it sleeps. Default: nil.
	Observe func(ctx context.Context, o Observation)
	// DenialLog, if set, observes each call whose Result has a Reason: a denial, or an
	// ErrOverloaded. It is called before Observe. Default: nil. That of package deniallog counts
	// denials by policy and key in the database.
	DenialLog Observer
	// MisconfiguredFailsOpen makes FailOpen and FailLocal apply on ErrMisconfigured too, ErrNotMigrated included, but not if pglimit's tables in the
	// search_path have several owners. Default: false. A wrong password or
	// a missing grant then lifts every such limit, until someone reads the log.
	MisconfiguredFailsOpen bool

	// Logger gets
	//   - a warning when FailOpen or FailLocal answered a request, at most one every ten
	//     seconds, with the number of answers since the last;
	//   - a warning if Close could not charge what FailLocal had granted;
	//   - an error when a call returned ErrMisconfigured, at most one a minute, with the
	//     number of such calls since the last;
	//   - one warning if prepared statements are lost behind a connection pooler.
	//
	// Default: slog.Default().
	Logger *slog.Logger
}

func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	d.Timeout = cmp.Or(d.Timeout, defaultTimeout)
	d.BatchRows = cmp.Or(d.BatchRows, defaultBatchRows)
	d.BatchStatements = cmp.Or(d.BatchStatements, defaultBatchStatements)
	d.MaxWaiting = cmp.Or(d.MaxWaiting, defaultMaxWaiting)
	d.IdempotencyTTL = cmp.Or(d.IdempotencyTTL, defaultIdempotencyTTL)
	d.DenyCacheTTL = cmp.Or(d.DenyCacheTTL, defaultDenyCacheTTL)
	d.DenyCacheKeys = cmp.Or(d.DenyCacheKeys, defaultDenyCacheKeys)
	d.LeaseKeys = cmp.Or(d.LeaseKeys, defaultLeaseKeys)
	d.MaxKeys = cmp.Or(d.MaxKeys, defaultMaxKeys)
	d.BreakAfter = cmp.Or(d.BreakAfter, defaultBreakAfter)
	d.BreakFor = cmp.Or(d.BreakFor, defaultBreakFor)
	if d.DisableTimeout {
		d.Timeout = 0
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	d.KeySecret = bytes.Clone(d.KeySecret)
	return d
}

// validate returns an error for the first field that is not valid. It shows no secret.
func (c *Config) validate() error {
	for _, f := range [...]struct {
		name  string
		value int64
		shown any
		off   string // the field that disables it
	}{
		{"Timeout", int64(c.Timeout), c.Timeout, "DisableTimeout"},
		{"BatchRows", int64(c.BatchRows), c.BatchRows, "DisableBatching"},
		{"BatchStatements", int64(c.BatchStatements), c.BatchStatements, "DisableBatching"},
		{"MaxWaiting", int64(c.MaxWaiting), c.MaxWaiting, ""},
		{"BreakAfter", int64(c.BreakAfter), c.BreakAfter, "DisableBreaker"},
		{"BreakFor", int64(c.BreakFor), c.BreakFor, "DisableBreaker"},
		{"DenyCacheTTL", int64(c.DenyCacheTTL), c.DenyCacheTTL, "DisableDenyCache"},
		{"DenyCacheKeys", int64(c.DenyCacheKeys), c.DenyCacheKeys, "DisableDenyCache"},
		{"LeaseKeys", int64(c.LeaseKeys), c.LeaseKeys, "DisableLeases"},
		{"MaxKeys", int64(c.MaxKeys), c.MaxKeys, ""},
	} {
		reason := "; for no bound use math.MaxInt"
		if f.off != "" {
			reason = "; to turn it off set Config." + f.off
		}
		if f.value < 0 {
			return store.Invalid("Config."+f.name, fmt.Sprint(f.shown), "must not be negative"+reason)
		}
	}
	if err := c.Sharding.validate(); err != nil {
		return err
	}
	if !matches(c.Policies, c.KeySecret) {
		return store.Invalid("Config.Policies", "opened with another KeySecret", "set policies.Config.KeySecret to Config.KeySecret, or the overrides' keys do not match")
	}
	if !matches(c.DenialLog, c.KeySecret) {
		return store.Invalid("Config.DenialLog", "made with another KeySecret", "set deniallog.Config.KeySecret to Config.KeySecret, or the log has other keys than the tables")
	}
	if n := len(c.KeySecret); c.KeySecret != nil && n < keys.MinSecret {
		return store.Invalid("Config.KeySecret", fmt.Sprintf("of %d bytes", n),
			fmt.Sprintf("must have at least %d bytes; use 32 random bytes, or nil to store keys as they are", keys.MinSecret))
	}
	return nil
}

// leaseClock returns the clock of leases.
func (c *Config) leaseClock() lease.Clock {
	if now := c.Now; now != nil {
		return func() (steady, wall int64) {
			at := now().UnixNano()
			return at, at
		}
	}
	return lease.SystemClock()
}

// clockTime returns this process's time, by Now if that is set.
func (c *Config) clockTime() time.Time {
	if c.Now != nil {
		return time.UnixMicro(c.Now().UnixMicro())
	}
	return time.UnixMicro(time.Now().UnixMicro())
}

// clock returns this process's clock in microseconds: Config.Now, or else a monotonic
// clock.
func (c *Config) clock() func() int64 {
	if now := c.Now; now != nil {
		return func() int64 { return now().UnixMicro() }
	}
	start := time.Now()
	return func() int64 { return time.Since(start).Microseconds() }
}
