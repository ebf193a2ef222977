package testworld

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/conformance"
	"github.com/pglimit/pglimit/limiter"
)

// Policies that differ in OnError.
var (
	FailsOpen   = limiter.Policy{Name: "open", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour, OnError: limiter.FailOpen}
	FailsClosed = limiter.Policy{Name: "closed", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
)

// Dialer counts a pool's connections to the server, and can close them.
type Dialer struct {
	url     func() string // of the server, which changes when a container restarts
	Dials   atomic.Int64
	Down    atomic.Bool
	Hangs   atomic.Bool
	Arrived chan struct{} // while it hangs
	Release chan struct{}
}

// NewDialer creates a dialer that connects.
func NewDialer(url func() string) *Dialer {
	return &Dialer{url: url, Arrived: make(chan struct{}), Release: make(chan struct{})}
}

// Dial is for a connection's DialFunc.
func (d *Dialer) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	d.Dials.Add(1)
	if d.Hangs.Load() {
		select {
		case d.Arrived <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		select {
		case <-d.Release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if d.Down.Load() {
		return nil, errors.New("the way is closed")
	}
	config, err := pgconn.ParseConfig(d.url())
	if err != nil {
		return nil, err
	}
	network, address := pgconn.NetworkAddress(config.Host, config.Port)
	return new(net.Dialer).DialContext(ctx, network, address)
}

// Broken is a limiter behind a dialer, with a clock that the test sets.
type Broken struct {
	*Dialer
	URL   string
	Pool  *pgxpool.Pool
	Clock *conformance.Clock
	L     *limiter.Limiter
}

// NewBroken creates a Broken over a database of this test. Its dialer connects.
func NewBroken(t *testing.T, config limiter.Config) *Broken {
	t.Helper()
	url := NewDatabase(t)
	b := &Broken{Dialer: NewDialer(func() string { return url }), URL: url, Clock: new(conformance.Clock)}
	b.Pool = Connect(t, url, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = b.Dial })
	config.Now = b.Clock.Now
	if config.Timeout == 0 {
		config.Timeout = 10 * time.Second // prevents a hang
	}
	b.L = NewLimiter(t, b.Pool, &config)
	return b
}

// Cut closes all connections, idle ones included, and refuses new ones.
func (b *Broken) Cut() { b.Down.Store(true); b.Pool.Reset() }

// ExpectUnavailable expects ErrUnavailable, and whether it came from an open breaker.
func (b *Broken) ExpectUnavailable(t *testing.T, open bool) error {
	t.Helper()
	before := b.Dials.Load()
	_, err := b.L.Allow(t.Context(), FailsClosed, "k")
	if !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "circuit breaker") != open {
		t.Errorf("got %v, want the breaker open: %v", err, open)
	}
	if dialed := b.Dials.Load() > before; dialed == open {
		t.Errorf("a connection was tried: %v, the breaker open: %v", dialed, open)
	}
	return err
}
