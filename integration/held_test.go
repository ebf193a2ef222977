package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

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

// TestHeldRowsThatNobodySees: a row that was inserted and not committed is found
// without a statement for each of its neighbours.
func TestHeldRowsThatNobodySees(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: heldLimit, Period: 1000 * time.Hour}
	tx := c.hold(t, p, "50")
	c.close()
	free := []<-chan answer{c.ask(t.Context(), p.Ask("first", 1))}
	var held <-chan answer
	for i := range 100 {
		a := c.ask(t.Context(), p.Ask(fmt.Sprintf("%02d", i), 1))
		if i == 50 {
			held = a
		} else {
			free = append(free, a)
		}
	}
	c.sent.forget()
	c.open()
	for _, a := range free {
		soon(t, "a neighbour", a)
	}
	if n := c.sent.ofOneRow(); n > 20 {
		t.Errorf("%d statements for one row each", n)
	}
	commit(t, tx)
	soon(t, "the key that was held", held)
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
// waited too long. Nobody asks for them any more, and once the row is free it
// answers as ever.
func TestHeldRowLeftByItsCallers(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: heldLimit, Period: 1000 * time.Hour}
	leave := func(t *testing.T, c *crowd, keys ...string) {
		ctx, cancel := context.WithCancel(t.Context())
		var gone []<-chan answer
		for _, key := range keys {
			gone = append(gone, c.behind(ctx, t, p.Ask(key, 1)))
		}
		cancel()
		for _, a := range gone {
			if got := <-a; !errors.Is(got.err, context.Canceled) {
				t.Errorf("%+v, %v", got.Result, got.err)
			}
		}
	}
	t.Run("all go away", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		tx := c.hold(t, p, "m", "n")
		leave(t, c, "m", "m", "n", "n")
		closed := make(chan answer, 1)
		go func() { closed <- answer{err: c.Close()} }()
		soon(t, "Close, which waits for statements in flight", closed)
		commit(t, tx)
		l := newLimiter(t, c.business, nil)
		for _, key := range []string{"m", "n"} {
			if r := must(t)(l.Check(t.Context(), p, key, 0)); !near(r.Level, heldLimit/2) {
				t.Errorf("%s: %+v", key, r)
			}
		}
	})
	t.Run("one comes again", func(t *testing.T) {
		t.Parallel()
		c := newCrowd(t)
		tx := c.hold(t, p, "m")
		leave(t, c, "m", "m")
		again := c.behind(t.Context(), t, p.Ask("m", 1))
		leave(t, c, "m")
		commit(t, tx)
		// What a statement was in flight for may have been counted.
		if r := soon(t, "the key that was held", again); !r.Allowed || r.Level > heldLimit/2+1+3 {
			t.Errorf("%+v", r)
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
	first, second := c.behind(t.Context(), t, p.Ask("m", 1)), c.behind(t.Context(), t, p.Ask("m", 2))
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	eventually(t, "the limiter is closed", func(ctx context.Context) (bool, error) {
		_, err := c.Check(ctx, p, "m", 0)
		return errors.Is(err, limiter.ErrClosed), nil
	})
	select {
	case <-closed:
		t.Fatal("Close returned while somebody waited for a held row")
	default:
	}
	commit(t, tx)
	soon(t, "the key that was held", first)
	soon(t, "the key that was held", second)
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
