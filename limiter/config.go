package limiter

import (
	"bytes"
	"context"
	"log/slog"
	"time"
)

// DefaultTimeout is Config.Timeout where it is 0.
const DefaultTimeout = time.Second

// Config sets up a Limiter. The zero value, and a nil *Config, are the
// documented defaults; a Config is copied, so it can be changed afterwards.
type Config struct {
	// Timeout bounds what one decision waits for the database, retries and
	// the wait for a connection included. 0 is DefaultTimeout; negative is
	// none but the context's. It does not bound Wait's sleep, nor what is
	// asked inside the caller's transaction.
	Timeout time.Duration
	// KeySecret, if not empty, makes the limiter store HMAC-SHA-256(secret,
	// key) instead of keys, for keys that are personal data. Another secret
	// starts every key afresh. 32 random bytes are plenty.
	KeySecret []byte
	// Now is the clock, for tests. nil, the default, is the database's clock,
	// or this machine's for NewMemory. It may be called from many goroutines.
	Now func() time.Time
	// Observe, if set, is called after every decision with what was asked, the
	// answer and the error, on the caller's goroutine: count here, return
	// soon. Reset, Block and Unblock decide nothing and are not observed.
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
	if d.Timeout == 0 {
		d.Timeout = DefaultTimeout
	}
	if d.Logger == nil {
		d.Logger = slog.Default()
	}
	d.KeySecret = bytes.Clone(d.KeySecret)
	return d
}
