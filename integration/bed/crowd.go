package bed

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// HeldLimit is how much a key may use in these tests. Its period is longer than a test.
const HeldLimit = 10

// Crowd is a doorway with a pool of four connections, one of which waits for locked rows,
// and the business transactions that lock them. Its breaker opens after one failure: a
// locked row is not a failure of the server.
type Crowd struct {
	*Doorway
	Business *pgxpool.Pool
	Sent     *Sent
}

// NewCrowd creates a crowd over a database of this test.
func NewCrowd(t *testing.T) *Crowd {
	t.Helper()
	address := NewDatabase(t)
	c := &Crowd{Doorway: &Doorway{Arrived: make(chan struct{})}, Business: Connect(t, address), Sent: new(Sent)}
	pool := Connect(t, address, c.Guard, FourConnections, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = c.Sent })
	c.Limiter = NewGated(t, pool, limiter.Config{BreakAfter: 1})
	return c
}

// Hold uses half of each key's limit, in a transaction that stays open.
func (c *Crowd) Hold(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	tx := Begin(t, c.Business, pgx.TxOptions{})
	for _, key := range keys {
		Must(t)(c.InTx(tx).AllowN(t.Context(), p, key, HeldLimit/2))
	}
	return tx
}

// HoldAsIs uses half of each key's limit, then updates the keys' rows with plain SQL in a
// transaction that stays open.
func (c *Crowd) HoldAsIs(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	Commit(t, c.Hold(t, p, keys...))
	tx := Begin(t, c.Business, pgx.TxOptions{})
	if _, err := tx.Exec(t.Context(), "UPDATE pglimit_"+string(p.Algorithm)+" SET policy = policy WHERE key = ANY ($1)", keys); err != nil {
		t.Fatal(err)
	}
	return tx
}

// Behind requests a locked key while nothing else is in flight, and returns once the
// request is in its lane.
func (c *Crowd) Behind(ctx context.Context, t *testing.T, request limiter.Request) <-chan Answer {
	t.Helper()
	n := c.Waiting() + 1
	a := Request(ctx, c.Limiter, request)
	AwaitWaiting(t, c.Limiter, n)
	return a
}

// StallsNobody expects that a transaction that has locked the rows of keys delays no
// request for another key, and that each request for a locked key gets its answer when the
// transaction commits. lone: nothing else is in flight at first.
func (c *Crowd) StallsNobody(t *testing.T, p limiter.Policy, tx pgx.Tx, keys []string, lone bool) {
	t.Helper()
	ctx := t.Context()
	held := map[string][]<-chan Answer{}
	var free []<-chan Answer
	c.Shut()
	if !lone {
		free = append(free, c.Queue(ctx, p.Request("first", 1)))
	}
	for _, key := range keys {
		held[key] = append(held[key], c.Queue(ctx, p.Request(key, 1)))
	}
	for i, key := range Neighbours() {
		free = append(free, c.Queue(ctx, p.Request(key, 1)))
		if i%7 == 0 {
			for _, key := range keys {
				held[key] = append(held[key], c.Queue(ctx, p.Request(key, 1)))
			}
		}
	}
	c.Reopen()
	for _, a := range free {
		if r := ResultOf(t, "a neighbour", a); !r.Allowed || !Near(r.Level, 1) {
			t.Errorf("a neighbour: %+v", r)
		}
	}

	// New requests for locked keys no longer share statements with others.
	c.Sent.Forget()
	for _, key := range keys {
		for range 3 {
			held[key] = append(held[key], c.Behind(ctx, t, p.Request(key, 1)))
		}
	}
	free = nil
	for range 5 {
		for _, key := range Neighbours() {
			free = append(free, Request(ctx, c.Limiter, p.Request(key, 1)))
		}
	}
	for _, a := range free {
		if r := ResultOf(t, "a neighbour once more", a); !r.Allowed {
			t.Errorf("a neighbour once more: %+v", r)
		}
	}
	for _, key := range keys {
		if n := c.Sent.outsideTheLane(key); n > 0 {
			t.Errorf("%s was in %d statements with others", key, n)
		}
		for i, a := range held[key] {
			select {
			case got := <-a:
				t.Errorf("request %d for %s, whose row is locked: %+v, %v", i, key, got.Result, got.Err)
			default:
			}
		}
	}

	Commit(t, tx)
	for _, key := range keys {
		for i, a := range held[key] {
			r := ResultOf(t, "a key that was held", a)
			if r.Allowed != (i < HeldLimit/2) || !Near(r.Remaining, float64(max(0, HeldLimit/2-1-i))) {
				t.Errorf("request %d of %d for %s: %+v", i, len(held[key]), key, r)
			}
		}
		if r := Must(t)(c.Check(ctx, p, key, 0)); !Near(r.Level, HeldLimit) {
			t.Errorf("%s in the end: %+v", key, r)
		}
	}
	for _, key := range Neighbours() {
		if r := Must(t)(c.Check(ctx, p, key, 0)); !Near(r.Level, 6) {
			t.Errorf("%s in the end: %+v", key, r)
		}
	}
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d callers wait in the end", n)
	}
}

// FourConnections is the default minimum of a pool.
func FourConnections(cfg *pgxpool.Config) { cfg.MaxConns = 4 }

// Sent is a tracer that records the statements sent.
type Sent struct {
	mu   sync.Mutex
	Args [][]any // of each statement
}

// TraceQueryStart keeps a statement's arguments.
func (s *Sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The limiter uses its arrays again.
	args := slices.Clone(data.Args)
	for i, a := range args {
		if words, ok := a.([]string); ok {
			args[i] = slices.Clone(words)
		}
	}
	s.Args = append(s.Args, args)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *Sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Forget drops what was recorded so far.
func (s *Sent) Forget() { s.mu.Lock(); defer s.mu.Unlock(); s.Args = nil }

// outsideTheLane counts the statements that request a key together with others. The lane
// sends it alone.
func (s *Sent) outsideTheLane(key string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, args := range s.Args {
		if slices.ContainsFunc(args, func(a any) bool {
			words, _ := a.([]string)
			return len(words) > 1 && slices.Contains(words, key)
		}) {
			n++
		}
	}
	return n
}

// OfOneRow counts the statements for one row.
func (s *Sent) OfOneRow() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, args := range s.Args {
		if !slices.ContainsFunc(args, func(a any) bool {
			words, _ := a.([]string)
			return len(words) > 1
		}) {
			n++
		}
	}
	return n
}

// Neighbours are the keys before and after locked keys in the lock order.
func Neighbours() (keys []string) {
	for i := range 10 {
		keys = append(keys, fmt.Sprint("a", i), fmt.Sprint("z", i))
	}
	return keys
}
