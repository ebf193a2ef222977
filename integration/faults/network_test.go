package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// networkFaults are between the load and a server that is well. toxiproxy makes them, so
// whatever it does not know of networks is not tested, such as packets in another order.
var networkFaults = slices.Concat(
	overBoth(network("connections reset", resetConnections)),
	[]fault{mild(network("latency of 50 ms, give or take 20", latency(50, 20))), network("latency of 500 ms", latency(500, 0))},
	overBoth(network("black hole", blackHole)),
	overBoth(network("black hole for answers", dropAnswers), overPGX),
	[]fault{network("packets late by seconds", stall), network("answers cut short", cutAnswers), forgotten()},
)

// network is a fault of a proxy that is made for it.
func network(name string, do func(context.Context, *proxy)) fault {
	var p *proxy
	return fault{
		name: name, causes: []error{limiter.ErrUnavailable},
		server: func(t *testing.T) *server {
			s := usualServer(t)
			p = newProxy(t, s.url())
			s.way = func() string { return p.through(s.url()) }
			return s
		},
		do: func(ctx context.Context, _ *testing.T, _ *scene) { do(ctx, p) },
	}
}

// mild returns a fault that need not cause errors.
func mild(f fault) fault {
	f.causes = nil
	return f
}

// forgotten is a black hole for the connections of a moment that never ends: a router has
// forgotten them, or a machine has lost its power. Neither side is told, and the server
// keeps their transactions. New connections work.
func forgotten() fault {
	var old, fresh *proxy
	var way atomic.Pointer[proxy]
	return fault{
		name: "connections forgotten by a router", causes: []error{limiter.ErrUnavailable},
		server: func(t *testing.T) *server {
			s := usualServer(t)
			endForgottenTransactions(t, s.url())
			old, fresh = newProxy(t, s.url()), newProxy(t, s.url())
			way.Store(old)
			s.way = func() string { return way.Load().through(s.url()) }
			return s
		},
		do: func(_ context.Context, t *testing.T, s *scene) {
			began := time.Now()
			old.add(hole...)
			way.Store(fresh)
			if back, ok := s.awaitNormal(began, began); full && !ok {
				t.Errorf("p99 is not normal %v after connections were forgotten", back)
			}
			old.remove(hole...) // the server has to end its sessions
		},
	}
}

// endForgottenTransactions makes the server end transactions of which it hears nothing for
// 2 s, as docs/operations.md advises: nothing else ends one whose program is gone without
// a word, and it holds its rows.
func endForgottenTransactions(t *testing.T, address string) {
	t.Helper()
	c := testworld.ConnectOnce(t, address)
	set := func(sql string) {
		if _, err := c.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	set("ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '2s'")
	t.Cleanup(func() { set("ALTER ROLE CURRENT_USER RESET idle_in_transaction_session_timeout") })
}

// lasting is how long a network is at fault.
var lasting = testworld.Size(time.Second, 5*time.Second)

// resetConnections resets a part of the connections again and again, when something passes
// on them: requests, answers and logins are lost.
func resetConnections(ctx context.Context, p *proxy) {
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		for _, stream := range []string{upstream, downstream} {
			p.with(ctx, 50*time.Millisecond, toxic{Type: "reset_peer", Stream: stream, Toxicity: 0.3})
			rest(ctx, 50*time.Millisecond)
		}
	}
}

// latency delays all answers by delay milliseconds, give or take jitter.
func latency(delay, jitter int) func(context.Context, *proxy) {
	return func(ctx context.Context, p *proxy) {
		p.with(ctx, lasting, toxic{Type: "latency", Stream: downstream, Toxicity: 1, Attributes: map[string]int{"latency": delay, "jitter": jitter}})
	}
}

// blackHole drops all packets in both directions. The server is not told of connections
// that clients close meanwhile.
func blackHole(ctx context.Context, p *proxy) {
	p.with(ctx, lasting, hole...)
}

var hole = []toxic{
	{Type: "timeout", Stream: upstream, Toxicity: 1},
	{Type: "slow_close", Stream: upstream, Toxicity: 1, Attributes: map[string]int{"delay": 3600_000}},
	{Type: "timeout", Stream: downstream, Toxicity: 1},
}

// dropAnswers drops what the server sends: statements arrive and count, and nobody gets to
// know.
func dropAnswers(ctx context.Context, p *proxy) {
	p.with(ctx, lasting, toxic{Type: "timeout", Stream: downstream, Toxicity: 1})
}

// stall holds all packets back and then delivers them, most of them when their callers have
// left.
func stall(ctx context.Context, p *proxy) {
	p.with(ctx, lasting,
		toxic{Type: "bandwidth", Stream: upstream, Toxicity: 1},
		toxic{Type: "bandwidth", Stream: downstream, Toxicity: 1},
	)
}

// cutAnswers closes connections in the middle of what the server sends, and lets the server
// know a while later.
func cutAnswers(ctx context.Context, p *proxy) {
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		p.with(ctx, 100*time.Millisecond,
			toxic{Type: "slow_close", Stream: upstream, Toxicity: 1, Attributes: map[string]int{"delay": 300}},
			toxic{Type: "limit_data", Stream: downstream, Toxicity: 1, Attributes: map[string]int{"bytes": 1 + rand.IntN(500)}},
		)
		rest(ctx, 50*time.Millisecond)
	}
}
