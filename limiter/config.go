package limiter

import (
	"bytes"
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Defaults of Config's fields, where they are 0.
const (
	DefaultTimeout         = time.Second
	DefaultBatchRows       = 256
	DefaultBatchStatements = 2
	DefaultBatchWaiting    = 16_384
	DefaultIdempotencyTTL  = 24 * time.Hour
	DefaultBreakAfter      = 10
	DefaultBreakFor        = time.Second
	DefaultDenyCacheTTL    = time.Second
	DefaultDenyCacheKeys   = 65_536
)

// Config sets up a Limiter. The zero value, and a nil *Config, are the
// documented defaults; a Config is copied, so it can be changed afterwards.
type Config struct {
	// Timeout bounds what one decision waits for the database, retries and
	// the wait for a connection included. 0 is DefaultTimeout; negative is
	// none but the context's, and DefaultTimeout once a Wait is cancelled. It does
	// not bound Wait's sleep, nor what is asked inside the caller's transaction.
	Timeout time.Duration
	// BatchRows is how many keys one statement decides at most when many
	// callers ask at once: 0 is DefaultBatchRows, negative is one statement for
	// each decision. A caller that nobody is ahead of never waits for company.
	BatchRows int
	// BatchStatements is how many such statements are in flight at most, for
	// each algorithm and durability: 0 is DefaultBatchStatements. A further one
	// goes out only for 8 waiting keys or more. Each needs a connection of the
	// pool; up to a quarter of the pool's connections more, one at least, wait
	// for keys whose rows other transactions hold. Negative is an ErrInvalid.
	BatchStatements int
	// BatchWaiting is how many callers wait for their statement at most, in
	// all; who comes after gets ErrOverloaded, or what Policy.OnError says
	// instead. 0 is DefaultBatchWaiting; negative is an ErrInvalid.
	BatchWaiting int
	// BreakAfter is how many times in a row the database may fail to answer,
	// before the circuit breaker opens: connections that fail, Config.Timeout, a
	// server that shuts down or has no connection left. 0 is DefaultBreakAfter;
	// negative is never. While it is open all verbs fail at once with an
	// ErrUnavailable that wraps the last failure, without the pool being asked,
	// and Policy.OnError decides; one caller every BreakFor asks all the same,
	// and any answer closes it. What callers end themselves does not count.
	// Transactions and NewMemory have no breaker.
	BreakAfter int
	// BreakFor is how long the open breaker lets nobody ask. 0 is
	// DefaultBreakFor; negative is an ErrInvalid. It is Now's time if that is set.
	BreakFor time.Duration
	// KeySecret, if not empty, makes the limiter store HMAC-SHA-256(secret,
	// key) instead of keys, for keys that are personal data. Another secret
	// starts every key afresh. 32 random bytes are plenty.
	KeySecret []byte
	// IdempotencyTTL is for how long, at least, an admission under an
	// Ask.IdempotencyKey is remembered, and a hold can still be settled or asked
	// about once it has expired. 0 is DefaultIdempotencyTTL; negative, above a
	// hundred years or not whole microseconds is an ErrInvalid of Reserve and of
	// asks that have such a key.
	IdempotencyTTL time.Duration
	// DenyCacheTTL is how long this process answers, at most, by a denial that
	// it was given: Do, Allow and AllowN of the same policy and key, at an equal
	// or larger cost, until the denial's RetryAfter or, if that is sooner, until
	// so long after it was asked for. 0 is DefaultDenyCacheTTL; negative is off.
	// That much later, at most, a Refund, Reset or Unblock by another process, the
	// end of a hold there, or that one has expired, is seen here. By this Limiter they are seen at once, and so is its Block;
	// in a transaction that counts from the call, and the TTL bounds what is
	// remembered between it and the commit. Verbs in a transaction are never
	// answered so, nor are those of NewMemory. See SourceCache.
	DenyCacheTTL time.Duration
	// DenyCacheKeys is how many keys' denials are remembered, at most; the one
	// longest unused makes room. Each takes some 700 bytes. 0 is
	// DefaultDenyCacheKeys; negative is an ErrInvalid.
	DenyCacheKeys int
	// Now is the clock, for tests. nil, the default, is the database's clock,
	// or this machine's for NewMemory. It may be called from many goroutines.
	Now func() time.Time
	// Observe, if set, is called after every decision with what was asked, the
	// answer and the error, on the caller's goroutine: count here, return
	// soon. Reset, Block, Unblock, Settle, Cancel and Statement decide nothing and
	// are not observed.
	Observe func(ctx context.Context, ask Ask, result Result, err error)
	// Logger gets a warning when FailOpen had to allow, at most one every ten
	// seconds, with the number allowed since the last. nil is slog.Default().
	Logger *slog.Logger
}

func (c *Config) withDefaults() Config {
	var d Config
	if c != nil {
		d = *c
	}
	orDefault(&d.Timeout, DefaultTimeout)
	orDefault(&d.BatchRows, DefaultBatchRows)
	orDefault(&d.BatchStatements, DefaultBatchStatements)
	orDefault(&d.BatchWaiting, DefaultBatchWaiting)
	orDefault(&d.IdempotencyTTL, DefaultIdempotencyTTL)
	orDefault(&d.DenyCacheTTL, DefaultDenyCacheTTL)
	orDefault(&d.DenyCacheKeys, DefaultDenyCacheKeys)
	orDefault(&d.BreakAfter, DefaultBreakAfter)
	orDefault(&d.BreakFor, DefaultBreakFor)
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	d.KeySecret = bytes.Clone(d.KeySecret)
	return d
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// validate returns an error for a number that has no meaning.
func (c *Config) validate() error {
	if c.BreakFor < 0 {
		return store.Invalid("Config.BreakFor", c.BreakFor.String(), "must not be negative; a negative BreakAfter is off")
	}
	if c.DenyCacheKeys < 0 {
		return store.Invalid("Config.DenyCacheKeys", strconv.Itoa(c.DenyCacheKeys), "must not be negative; a negative DenyCacheTTL is off")
	}
	for name, n := range map[string]int{"BatchStatements": c.BatchStatements, "BatchWaiting": c.BatchWaiting} {
		if n < 0 {
			return store.Invalid("Config."+name, strconv.Itoa(n), "must not be negative; a negative BatchRows is off")
		}
	}
	return nil
}

// clock returns this process's clock in microseconds: Config.Now, else one that
// no setting of the machine's time moves.
func (c *Config) clock() func() int64 {
	if now := c.Now; now != nil {
		return func() int64 { return now().UnixMicro() }
	}
	start := time.Now()
	return func() int64 { return time.Since(start).Microseconds() }
}
