package allowall

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// tripConn counts round trips: what is sent after something was received.
type tripConn struct {
	net.Conn
	trips   *atomic.Int64
	sending atomic.Bool
}

func (c *tripConn) Write(b []byte) (int, error) {
	if !c.sending.Swap(true) {
		c.trips.Add(1)
	}
	return c.Conn.Write(b)
}

func (c *tripConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.sending.Store(false)
	}
	return n, err
}

// countTrips makes a pool count in trips.
func countTrips(trips *atomic.Int64) func(*pgxpool.Config) {
	return func(config *pgxpool.Config) {
		config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &tripConn{Conn: conn, trips: trips}, err
		}
	}
}

// TestAllowAllRoundTrips: an answer takes two round trips, or one if all are granted and
// had room before.
func TestAllowAllRoundTrips(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var trips atomic.Int64
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.OneConnection, countTrips(&trips))
	l := testworld.NewLimiter(t, pool, &limiter.Config{DisableDenyCache: true})
	logs := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: 1000 * time.Hour}
	blocks := limiter.Policy{Name: "blocks", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour, BlockFor: time.Hour}
	plain := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 10, Period: 1000 * time.Hour}
	for _, c := range []struct {
		what            string
		asks            []limiter.Request
		allowed         bool
		outside, inside int64
	}{
		{"allowed", []limiter.Request{logs.Request("a", 1), blocks.Request("a", 1), plain.Request("a", 1), plain.Request("b", 1)}, true, 1, 2},
		{"denied", []limiter.Request{plain.Request("a", 1), plain.Request("full", 1)}, false, 2, 1},
		{"denied, with logs and a block", []limiter.Request{logs.Request("full", 1), logs.Request("full", 1), logs.Request("a", 1), blocks.Request("full", 1)}, false, 2, 2},
		{"one request", []limiter.Request{plain.Request("a", 1)}, true, 1, 1},
		{"above the burst", []limiter.Request{plain.Request("a", 1), logs.Request("b", 11)}, false, 1, 1},
	} {
		outside, inside := int64(math.MaxInt64), int64(math.MaxInt64)
		for range 4 { // statements are prepared; once a second expired reservations are looked up
			for _, p := range []limiter.Policy{logs, blocks, plain} {
				must.Succeed(t, l.Reset(ctx, p, "a"))
				must.Succeed(t, l.Unblock(ctx, p, "full"))
				testworld.Must(t)(l.Charge(ctx, p, "full", 10))
			}
			testworld.Must(t)(l.Allow(ctx, plain, "full")) // denied: it looks up what the next would
			before := trips.Load()
			all := testworld.MustAll(t)(l.AllowAll(ctx, c.asks...))
			outside = min(outside, trips.Load()-before)
			must.Succeed(t, l.Unblock(ctx, blocks, "full"))
			tx := testworld.Begin(t, pool, pgx.TxOptions{})
			before = trips.Load()
			in := testworld.MustAll(t)(l.InTx(tx).AllowAll(ctx, c.asks...))
			inside = min(inside, trips.Load()-before)
			testworld.Commit(t, tx)
			if all.Allowed != c.allowed || in.Allowed != c.allowed {
				t.Fatalf("%s: %+v, %+v", c.what, all, in)
			}
		}
		if outside != c.outside || inside != c.inside {
			t.Errorf("%s: %d round trips outside, %d inside, want %d and %d", c.what, outside, inside, c.outside, c.inside)
		}
	}
}

// rowsLocked returns how many statements each pipeline had since the last Take, and the
// rows that they name: the table's place among the algorithms, and the key.
func rowsLocked(sent *testworld.Trace) (statements []int, rows []string) {
	for _, together := range sent.Take() {
		if len(together) == 1 {
			continue
		}
		statements = append(statements, len(together))
		for _, q := range together {
			place := slices.IndexFunc(algorithm.Tables[:], func(a algorithm.Name) bool {
				return strings.Contains(q.SQL, "pglimit_"+string(a)+" ")
			})
			for _, arg := range q.Arguments {
				keys, _ := arg.([]string)
				if key, ok := arg.(string); ok {
					keys = []string{key}
				}
				for _, key := range keys {
					if len(key) >= 30 {
						rows = append(rows, fmt.Sprint(place, " ", key))
					}
				}
			}
		}
	}
	return statements, rows
}

// TestAllowAllLocksInOneOrder: rows are locked in the order of the tables, then of the
// stored keys. With Config.KeySecret that is not the order of the keys. Each table has one
// statement.
func TestAllowAllLocksInOneOrder(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var sent testworld.Trace
	pool := testworld.Connect(t, testworld.NewDatabase(t), sent.On)
	for _, secret := range [][]byte{nil, []byte("a secret for the keys")} {
		l := testworld.NewLimiter(t, pool, &limiter.Config{KeySecret: secret})
		var requests []limiter.Request
		for i, a := range algorithm.Tables {
			p := limiter.Policy{Name: fmt.Sprint(9 - i), Algorithm: limiter.Algorithm(a), Limit: 10, Period: time.Hour}
			for j := range 10 {
				requests = append(requests, p.Request(fmt.Sprintf("a key as long as its HMAC in the end %02d", (j*7)%10), 1))
			}
		}
		for _, way := range []string{"outside", "outside at once", "inside"} {
			rand.Shuffle(len(requests), func(i, j int) { requests[i], requests[j] = requests[j], requests[i] })
			sent.Take()
			statements := []int{2 + len(algorithm.Tables)} // includes BEGIN and its SET
			switch way {
			case "outside at once":
				statements = []int{len(algorithm.Tables)}
				testworld.MustAll(t)(l.AllowAll(ctx, requests...))
			case "inside":
				tx := testworld.Begin(t, pool, pgx.TxOptions{})
				testworld.MustAll(t)(l.InTx(tx).AllowAll(ctx, requests...))
				testworld.Commit(t, tx)
				statements = []int{len(algorithm.Tables), len(algorithm.Tables)}
			default:
				testworld.MustAll(t)(l.AllowAll(ctx, requests...))
			}
			got, rows := rowsLocked(&sent)
			if !slices.Equal(got, statements) {
				t.Errorf("%s: batches of %d statements, want %d", way, got, statements)
			}
			if rows := rows[:len(requests)]; !slices.IsSorted(rows) {
				t.Errorf("with the secret %q, %s, rows are locked in the order %q", secret, way, rows)
			}
			if secret != nil && strings.Contains(rows[0], "a key") {
				t.Error("the keys are not their HMAC")
			}
		}
	}
}

// TestAllowAllTriesAgain until a locked row is free. Units taken before the locked row are
// counted once.
func TestAllowAllTriesAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testworld.NewDatabase(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
	other := testworld.Connect(t, url)
	tx := testworld.Begin(t, other, pgx.TxOptions{})
	pipelines := 0
	trace := &testworld.Trace{Before: func(sent testworld.Sent) {
		if len(sent) == 1 {
			return
		}
		if pipelines++; pipelines == 8 { // each try sends two, and the first also reads
			testworld.Commit(t, tx)
		}
	}}
	l := testworld.NewLimiter(t, testworld.Connect(t, url, testworld.OneConnection, trace.On), nil)
	testworld.Must(t)(l.InTx(tx).Allow(ctx, p, "held"))
	if all := testworld.MustAll(t)(l.AllowAll(ctx, p.Request("a", 1), p.Request("held", 1))); !all.Allowed || pipelines < 8 {
		t.Errorf("%+v after %d pipelines", all, pipelines)
	}
	if level := testworld.Level(t, l, p, "a"); !testworld.Near(level, 1) {
		t.Errorf("level %v, want 1", level)
	}
}
