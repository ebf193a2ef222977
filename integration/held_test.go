package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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

// neighbours come before and after held keys in the order of locking.
func neighbours() (keys []string) {
	for i := range 10 {
		keys = append(keys, fmt.Sprint("a", i), fmt.Sprint("z", i))
	}
	return keys
}

// TestHeldRowsStallNobody: while a transaction holds rows, all other keys have
// their answers; then those who wait for the held ones have theirs, each once
// and in the order of their coming.
func TestHeldRowsStallNobody(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		hold func(*crowd, *testing.T, limiter.Policy, ...string) pgx.Tx
		keys []string
		lone bool // the first ask of all is for a held one
	}{
		{"alone", (*crowd).hold, []string{"m"}, true},
		{"alone, by an update", (*crowd).holdAsIs, []string{"m"}, true},
		{"in a batch", (*crowd).holdAsIs, []string{"m"}, false},
		{"two", (*crowd).holdAsIs, []string{"m", "n"}, false},
		{"not there yet", (*crowd).hold, []string{"m"}, false},
		{"two not there yet", (*crowd).hold, []string{"m", "n"}, false},
		{"more than the lane is wide", (*crowd).holdAsIs, []string{"m", "n", "o", "p", "q"}, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			for _, p := range variants(heldLimit, 1000*time.Hour) {
				t.Run(variant(p), func(t *testing.T) {
					tx := s.hold(c, t, p, s.keys...)
					c.stallsNobody(t, p, tx, s.keys, s.lone)
				})
			}
		})
	}
}

func (c *crowd) stallsNobody(t *testing.T, p limiter.Policy, tx pgx.Tx, keys []string, lone bool) {
	t.Helper()
	ctx := t.Context()
	held := map[string][]<-chan answer{}
	var free []<-chan answer
	c.close()
	if !lone {
		free = append(free, c.ask(ctx, p.Ask("first", 1)))
	}
	for _, key := range keys {
		held[key] = append(held[key], c.ask(ctx, p.Ask(key, 1)))
	}
	for i, key := range neighbours() {
		free = append(free, c.ask(ctx, p.Ask(key, 1)))
		if i%7 == 0 {
			for _, key := range keys {
				held[key] = append(held[key], c.ask(ctx, p.Ask(key, 1)))
			}
		}
	}
	c.open()
	for _, a := range free {
		if r := soon(t, "a neighbour", a); !r.Allowed || !near(r.Level, 1) {
			t.Errorf("a neighbour: %+v", r)
		}
	}

	// Those who come now for held keys do not come among the others any more.
	c.sent.forget()
	for _, key := range keys {
		for range 3 {
			held[key] = append(held[key], c.behind(ctx, t, p.Ask(key, 1)))
		}
	}
	free = nil
	for range 5 {
		for _, key := range neighbours() {
			free = append(free, meanwhile(ctx, c.Limiter, p.Ask(key, 1)))
		}
	}
	for _, a := range free {
		if r := soon(t, "a neighbour once more", a); !r.Allowed {
			t.Errorf("a neighbour once more: %+v", r)
		}
	}
	for _, key := range keys {
		if n := c.sent.outsideTheLane(key); n > 0 {
			t.Errorf("%s was asked for in %d statements with others", key, n)
		}
		for i, a := range held[key] {
			select {
			case got := <-a:
				t.Errorf("ask %d for %s, whose row is held: %+v, %v", i, key, got.Result, got.err)
			default:
			}
		}
	}

	commit(t, tx)
	for _, key := range keys {
		for i, a := range held[key] {
			r := soon(t, "a key that was held", a)
			if r.Allowed != (i < heldLimit/2) || !near(r.Remaining, float64(max(0, heldLimit/2-1-i))) {
				t.Errorf("ask %d of %d for %s: %+v", i, len(held[key]), key, r)
			}
		}
		if r := must(t)(c.Check(ctx, p, key, 0)); !near(r.Level, heldLimit) {
			t.Errorf("%s in the end: %+v", key, r)
		}
	}
	for _, key := range neighbours() {
		if r := must(t)(c.Check(ctx, p, key, 0)); !near(r.Level, 6) {
			t.Errorf("%s in the end: %+v", key, r)
		}
	}
	if n := c.Waiting(); n != 0 {
		t.Errorf("%d callers wait in the end", n)
	}
}

// TestHeldRowsDoNotStallEachOther: where one connection waits for held rows, the
// row that is free first has its answer first, also if it came last.
func TestHeldRowsDoNotStallEachOther(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: heldLimit, Period: 1000 * time.Hour}
	transactions := map[string]pgx.Tx{}
	answers := map[string]<-chan answer{}
	keys := []string{"m", "n", "o"}
	for _, key := range keys {
		transactions[key] = c.hold(t, p, key)
		answers[key] = c.behind(t.Context(), t, p.Ask(key, 1))
	}
	for i, key := range slices.Backward(keys) {
		commit(t, transactions[key])
		soon(t, key+", which is free", answers[key])
		if n := c.Waiting(); n != i {
			t.Errorf("after %s %d callers wait, want %d", key, n, i)
		}
	}
}

// TestHeldRowsLeaveConnections: keys of all algorithms are held at once, of
// either durability, and a pool of four has connections for others.
func TestHeldRowsLeaveConnections(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	tx := begin(t, c.business, pgx.TxOptions{})
	var policies []limiter.Policy
	for _, p := range variants(heldLimit, 1000*time.Hour) {
		relaxed := p
		relaxed.Name += "-relaxed"
		relaxed.Durability = limiter.Relaxed
		policies = append(policies, p, relaxed)
	}
	var held []<-chan answer
	for _, p := range policies {
		must(t)(c.InTx(tx).AllowN(t.Context(), p, "m", heldLimit-1))
		held = append(held, c.behind(t.Context(), t, p.Ask("m", 1)))
	}
	for _, p := range policies {
		soon(t, "a neighbour", meanwhile(t.Context(), c.Limiter, p.Ask("n", 1)))
	}
	waiting(t, c.Limiter, len(policies))
	commit(t, tx)
	for i, a := range held {
		if r := soon(t, "a key that was held", a); !r.Allowed || !near(r.Level, heldLimit) {
			t.Errorf("%s: %+v", variant(policies[i]), r)
		}
	}
}

// TestHeldRowLeftByItsCallers: those who ask for a held key go away, or have
// waited too long, and consume nothing if nobody waited for the row when they
// did. Once it is free it answers as ever.
func TestHeldRowLeftByItsCallers(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: heldLimit, Period: 1000 * time.Hour}
	t.Run("they go away", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		tx := c.hold(t, p, "m", "n")
		ctx, cancel := context.WithCancel(t.Context())
		var gone []<-chan answer
		for _, key := range []string{"m", "m", "n", "n"} {
			gone = append(gone, c.behind(ctx, t, p.Ask(key, 1)))
		}
		cancel()
		for _, a := range gone {
			if got := <-a; !errors.Is(got.err, context.Canceled) {
				t.Errorf("%+v, %v", got.Result, got.err)
			}
		}
		soon(t, "a neighbour", meanwhile(t.Context(), c.Limiter, p.Ask("neighbour", 1)))
		commit(t, tx)
		for _, key := range []string{"m", "n"} {
			// What a statement was under way for may have been counted.
			if r := soon(t, key+", which is free", meanwhile(t.Context(), c.Limiter, p.Ask(key, 1))); !r.Allowed || r.Level > heldLimit/2+3 {
				t.Errorf("%s: %+v", key, r)
			}
		}
	})
	t.Run("they have waited too long", func(t *testing.T) {
		t.Parallel()
		address := newDatabase(t)
		l := newLimiter(t, connect(t, address, four), &limiter.Config{Timeout: 50 * time.Millisecond, BreakAfter: -1})
		tx := begin(t, connect(t, address), pgx.TxOptions{})
		must(t)(l.InTx(tx).Allow(t.Context(), p, "m"))
		for range 2 {
			if _, err := l.Allow(t.Context(), p, "m"); !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the row is held: %v", err)
			}
		}
		commit(t, tx)
		eventually(t, "the key answers", func(ctx context.Context) (bool, error) {
			r, err := l.Allow(ctx, p, "m")
			if errors.Is(err, limiter.ErrUnavailable) { // a slow machine
				return false, nil
			}
			return r.Allowed, err
		})
	})
}

// TestCloseWaitsForHeldRows: asks that came before have their answers.
func TestCloseWaitsForHeldRows(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: heldLimit, Period: 1000 * time.Hour}
	tx := c.hold(t, p, "m")
	a := c.behind(t.Context(), t, p.Ask("m", 1))
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	eventually(t, "the limiter is closed", func(ctx context.Context) (bool, error) {
		_, err := c.Check(ctx, p, "m", 0)
		return errors.Is(err, limiter.ErrClosed), nil
	})
	select {
	case <-closed:
		t.Error("Close returned while somebody waited for a held row")
	default:
	}
	commit(t, tx)
	soon(t, "the key that was held", a)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestHeldRowsLeaveNoGoroutine counts them, so it is not parallel.
func TestHeldRowsLeaveNoGoroutine(t *testing.T) {
	c := newCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: heldLimit, Period: 1000 * time.Hour}
	keys := []string{"m", "n", "o"}
	tx := c.holdAsIs(t, p, keys...)
	before := runtime.NumGoroutine()
	c.stallsNobody(t, p, tx, keys, false)
	eventually(t, "all goroutines have ended", func(context.Context) (bool, error) { return runtime.NumGoroutine() <= before, nil })
}
