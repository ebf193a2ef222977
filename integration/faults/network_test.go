package faults

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// networkFaults are between the load and a server that is well. toxiproxy makes them, so
// whatever it does not know of networks is not tested, such as packets in another order.
var networkFaults = []fault{
	networkFault{
		name: "connections reset",
		do:   resetConnections,
	}.fault(),
	networkFault{
		name: "latency of 50 ms, give or take 20", mild: true,
		do: latency(50, 20),
	}.fault(),
	networkFault{
		name: "latency of 500 ms",
		do:   latency(500, 0),
	}.fault(),
	networkFault{
		name: "black hole",
		do:   blackHole,
	}.fault(),
	networkFault{
		name: "black hole for answers", quick: true,
		do: dropAnswers,
	}.fault(),
	networkFault{
		name: "packets late by seconds",
		do:   stall,
	}.fault(),
	networkFault{
		name: "answers cut short",
		do:   cutAnswers,
	}.fault(),
	networkFault{
		name: "connections reset, database/sql", over: bothSQL,
		do: resetConnections,
	}.fault(),
	networkFault{
		name: "black hole, database/sql", over: bothSQL,
		do: blackHole,
	}.fault(),
	networkFault{
		name: "black hole for answers, database/sql", over: bothSQL,
		do: dropAnswers,
	}.fault(),
	forgotten(),
}

// forgotten is a black hole for the connections of a moment that never ends: a router has
// forgotten them, or a machine has lost its power. Neither side is told, and the server
// keeps their transactions. New connections work.
func forgotten() fault {
	var old, fresh *network
	var way atomic.Pointer[network]
	return fault{
		name: "connections forgotten by a router", causes: []error{limiter.ErrUnavailable},
		server: func(t *testing.T) *server {
			s := usualServer(t)
			endForgottenTransactions(t, s.url())
			old, fresh = newNetwork(t, s.url()), newNetwork(t, s.url())
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
	c := bed.ConnectOnce(t, address)
	set := func(sql string) {
		if _, err := c.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	set("ALTER ROLE CURRENT_USER SET idle_in_transaction_session_timeout = '2s'")
	t.Cleanup(func() { set("ALTER ROLE CURRENT_USER RESET idle_in_transaction_session_timeout") })
}

var bothSQL = []driver{overSQL, overLibPQ}

// networkFault is a fault of a network that is made for it.
type networkFault struct {
	name  string
	quick bool
	over  []driver
	mild  bool // it need not cause errors
	do    func(context.Context, *network)
}

func (f networkFault) fault() fault {
	var n *network
	causes := []error{limiter.ErrUnavailable}
	if f.mild {
		causes = nil
	}
	return fault{
		name: f.name, quick: f.quick, over: f.over, causes: causes,
		server: func(t *testing.T) *server {
			s := usualServer(t)
			n = newNetwork(t, s.url())
			s.way = func() string { return n.through(s.url()) }
			return s
		},
		do: func(ctx context.Context, _ *testing.T, _ *scene) { f.do(ctx, n) },
	}
}

// lasting is how long a network is at fault.
var lasting = bed.Size(time.Second, 5*time.Second)

// resetConnections resets a part of the connections again and again, when something passes
// on them: requests, answers and logins are lost.
func resetConnections(ctx context.Context, n *network) {
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		for _, stream := range []string{upstream, downstream} {
			n.with(ctx, 50*time.Millisecond, toxic{Type: "reset_peer", Stream: stream, Toxicity: 0.3})
			rest(ctx, 50*time.Millisecond)
		}
	}
}

// latency delays all answers by so many milliseconds, give or take some.
func latency(delay, jitter int) func(context.Context, *network) {
	return func(ctx context.Context, n *network) {
		n.with(ctx, lasting, toxic{Type: "latency", Stream: downstream, Toxicity: 1, Attributes: map[string]int{"latency": delay, "jitter": jitter}})
	}
}

// blackHole drops all packets in both directions. The server is not told of connections
// that clients close meanwhile.
func blackHole(ctx context.Context, n *network) {
	n.with(ctx, lasting, hole...)
}

var hole = []toxic{
	{Type: "timeout", Stream: upstream, Toxicity: 1},
	{Type: "slow_close", Stream: upstream, Toxicity: 1, Attributes: map[string]int{"delay": 3600_000}},
	{Type: "timeout", Stream: downstream, Toxicity: 1},
}

// dropAnswers drops what the server sends: statements arrive and count, and nobody gets to
// know.
func dropAnswers(ctx context.Context, n *network) {
	n.with(ctx, lasting, toxic{Type: "timeout", Stream: downstream, Toxicity: 1})
}

// stall holds all packets back and then delivers them, most of them when their callers have
// left.
func stall(ctx context.Context, n *network) {
	n.with(ctx, lasting,
		toxic{Type: "bandwidth", Stream: upstream, Toxicity: 1},
		toxic{Type: "bandwidth", Stream: downstream, Toxicity: 1},
	)
}

// cutAnswers closes connections in the middle of what the server sends, and lets the server
// know a while later.
func cutAnswers(ctx context.Context, n *network) {
	for end := time.Now().Add(lasting); time.Now().Before(end); {
		n.with(ctx, 100*time.Millisecond,
			toxic{Type: "slow_close", Stream: upstream, Toxicity: 1, Attributes: map[string]int{"delay": 300}},
			toxic{Type: "limit_data", Stream: downstream, Toxicity: 1, Attributes: map[string]int{"bytes": 1 + rand.IntN(500)}},
		)
		rest(ctx, 50*time.Millisecond)
	}
}
