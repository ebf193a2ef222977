package integration

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// heldLimit is how much a key may use here, in longer than a test lasts.
const heldLimit = 10

// crowd is a doorway with a pool of four connections, of which one waits for
// held rows, and the business transactions that hold them. Its breaker opens at
// once: a row that is held is no server that does not answer.
type crowd struct {
	*doorway
	business *pgxpool.Pool
	sent     *sent
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	address := newDatabase(t)
	c := &crowd{doorway: &doorway{arrived: make(chan struct{})}, business: connect(t, address), sent: new(sent)}
	pool := connect(t, address, c.guard, four, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = c.sent })
	c.Limiter = newGated(t, pool, limiter.Config{BreakAfter: 1})
	return c
}

// four is the least that a pool has by default.
func four(cfg *pgxpool.Config) { cfg.MaxConns = 4 }

// hold uses up half of what each key has, in a transaction that stays open.
func (c *crowd) hold(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	tx := begin(t, c.business, pgx.TxOptions{})
	for _, key := range keys {
		must(t)(c.InTx(tx).AllowN(t.Context(), p, key, heldLimit/2))
	}
	return tx
}

// holdAsIs updates the keys' rows in a transaction that stays open, in SQL
// that knows nothing of limits, after half of what each has was used up.
func (c *crowd) holdAsIs(t *testing.T, p limiter.Policy, keys ...string) pgx.Tx {
	t.Helper()
	commit(t, c.hold(t, p, keys...))
	tx := begin(t, c.business, pgx.TxOptions{})
	if _, err := tx.Exec(t.Context(), "UPDATE pglimit_"+string(p.Algorithm)+" SET policy = policy WHERE key = ANY ($1)", keys); err != nil {
		t.Fatal(err)
	}
	return tx
}

func commit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// meanwhile asks on a goroutine of its own, with the gate open.
func meanwhile(ctx context.Context, l *limiter.Limiter, ask limiter.Ask) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		r, err := l.Do(ctx, ask)
		answers <- answer{r, err}
	}()
	return answers
}

// behind asks for a held key, while nobody else asks, and returns once the ask
// is in its place.
func (c *crowd) behind(ctx context.Context, t *testing.T, ask limiter.Ask) <-chan answer {
	t.Helper()
	n := c.Waiting() + 1
	a := meanwhile(ctx, c.Limiter, ask)
	waiting(t, c.Limiter, n)
	return a
}

// waiting waits until so many callers wait.
func waiting(t *testing.T, l *limiter.Limiter, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d callers wait", n), func(context.Context) (bool, error) { return l.Waiting() == n, nil })
}

// soon is an answer that nothing holds up. The time is there against hanging
// for ever, and is shorter than the limiter's own.
func soon(t *testing.T, what string, answers <-chan answer) limiter.Result {
	t.Helper()
	late := time.NewTimer(30 * time.Second)
	defer late.Stop()
	select {
	case got := <-answers:
		if got.err != nil {
			t.Fatalf("%s: %v", what, got.err)
		}
		return got.Result
	case <-late.C:
		t.Fatalf("%s: no answer", what)
	}
	return limiter.Result{}
}

// sent is a tracer that keeps what was sent.
type sent struct {
	mu   sync.Mutex
	args [][]any
}

func (s *sent) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	// The limiter uses its arrays again.
	args := slices.Clone(data.Args)
	for i, a := range args {
		if words, ok := a.([]string); ok {
			args[i] = slices.Clone(words)
		}
	}
	s.args = append(s.args, args)
	return ctx
}

func (s *sent) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *sent) forget() { s.mu.Lock(); defer s.mu.Unlock(); s.args = nil }

// outsideTheLane counts the statements that ask for a key with others, or as a
// caller on its own does.
func (s *sent) outsideTheLane(key string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, args := range s.args {
		if slices.ContainsFunc(args, func(a any) bool {
			words, _ := a.([]string)
			return a == any(key) || len(words) > 1 && slices.Contains(words, key)
		}) {
			n++
		}
	}
	return n
}

// ofOneRow counts the statements that could have asked for more than one key.
func (s *sent) ofOneRow() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, args := range s.args {
		if slices.ContainsFunc(args, func(a any) bool {
			words, _ := a.([]string)
			return len(words) == 1
		}) {
			n++
		}
	}
	return n
}

// neighbours come before and after held keys in the order of locking.
func neighbours() (keys []string) {
	for i := range 10 {
		keys = append(keys, fmt.Sprint("a", i), fmt.Sprint("z", i))
	}
	return keys
}
