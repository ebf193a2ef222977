package coalesce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestHeldRowsStallNobody: while a transaction has locked rows, all other keys get their
// answers. Then the callers of the locked keys get theirs, each once and in order of
// arrival.
func TestHeldRowsStallNobody(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name string
		hold func(*bed.Crowd, *testing.T, limiter.Policy, ...string) pgx.Tx
		keys []string
		lone bool // the very first request is for a locked key
	}{
		{"alone", (*bed.Crowd).Hold, []string{"m"}, true},
		{"alone, by an update", (*bed.Crowd).HoldAsIs, []string{"m"}, true},
		{"in a batch", (*bed.Crowd).HoldAsIs, []string{"m"}, false},
		{"two", (*bed.Crowd).HoldAsIs, []string{"m", "n"}, false},
		{"not there yet", (*bed.Crowd).Hold, []string{"m"}, false},
		{"two not there yet", (*bed.Crowd).Hold, []string{"m", "n"}, false},
		{"more than the lane is wide", (*bed.Crowd).HoldAsIs, []string{"m", "n", "o", "p", "q"}, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			c := bed.NewCrowd(t)
			for _, p := range bed.Variants(bed.HeldLimit, 1000*time.Hour) {
				t.Run(bed.Variant(p), func(t *testing.T) {
					tx := s.hold(c, t, p, s.keys...)
					c.StallsNobody(t, p, tx, s.keys, s.lone)
				})
			}
		})
	}
}

// TestHeldRowsThatNobodySees: an inserted, uncommitted row is found without one statement
// for each of its neighbours.
func TestHeldRowsThatNobodySees(t *testing.T) {
	t.Parallel()
	c := bed.NewCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: bed.HeldLimit, Period: 1000 * time.Hour}
	tx := c.Hold(t, p, "50")
	c.Shut()
	free := []<-chan bed.Answer{c.Queue(t.Context(), p.Request("first", 1))}
	var held <-chan bed.Answer
	for i := range 100 {
		a := c.Queue(t.Context(), p.Request(fmt.Sprintf("%02d", i), 1))
		if i == 50 {
			held = a
		} else {
			free = append(free, a)
		}
	}
	c.Sent.Forget()
	c.Reopen()
	for _, a := range free {
		bed.ResultOf(t, "a neighbour", a)
	}
	if n := c.Sent.OfOneRow(); n > 20 {
		t.Errorf("%d statements for one row each", n)
	}
	bed.Commit(t, tx)
	bed.ResultOf(t, "the key that was held", held)
}

// TestHeldRowsDoNotStallEachOther: if one connection waits for locked rows, the row that
// is free first is answered first, even if it was requested last.
func TestHeldRowsDoNotStallEachOther(t *testing.T) {
	t.Parallel()
	c := bed.NewCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: bed.HeldLimit, Period: 1000 * time.Hour}
	transactions := map[string]pgx.Tx{}
	answers := map[string]<-chan bed.Answer{}
	keys := []string{"m", "n", "o"}
	for _, key := range keys {
		transactions[key] = c.Hold(t, p, key)
		answers[key] = c.Behind(t.Context(), t, p.Request(key, 1))
	}
	for i, key := range slices.Backward(keys) {
		bed.Commit(t, transactions[key])
		bed.ResultOf(t, key+", which is free", answers[key])
		if n := c.Waiting(); n != i {
			t.Errorf("after %s %d callers wait, want %d", key, n, i)
		}
	}
}

// TestHeldRowsLeaveConnections: keys of all algorithms and both durabilities are locked at
// once, and a pool of four has connections for others.
func TestHeldRowsLeaveConnections(t *testing.T) {
	t.Parallel()
	c := bed.NewCrowd(t)
	tx := bed.Begin(t, c.Business, pgx.TxOptions{})
	var policies []limiter.Policy
	for _, p := range bed.Variants(bed.HeldLimit, 1000*time.Hour) {
		relaxed := p
		relaxed.Name += "-relaxed"
		relaxed.Durability = limiter.Relaxed
		policies = append(policies, p, relaxed)
	}
	var held []<-chan bed.Answer
	for _, p := range policies {
		bed.Must(t)(c.InTx(tx).AllowN(t.Context(), p, "m", bed.HeldLimit-1))
		held = append(held, c.Behind(t.Context(), t, p.Request("m", 1)))
	}
	for _, p := range policies {
		bed.ResultOf(t, "a neighbour", bed.Request(t.Context(), c.Limiter, p.Request("n", 1)))
	}
	bed.AwaitWaiting(t, c.Limiter, len(policies))
	bed.Commit(t, tx)
	for i, a := range held {
		if r := bed.ResultOf(t, "a key that was held", a); !r.Allowed || !bed.Near(r.Level, bed.HeldLimit) {
			t.Errorf("%s: %+v", bed.Variant(policies[i]), r)
		}
	}
}

// TestHeldRowsLeftByTheirCallers: the callers of a locked key are cancelled or time out.
// No statement requests the key any more, and once the row is free it is decided as usual.
func TestHeldRowsLeftByTheirCallers(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: bed.HeldLimit, Period: 1000 * time.Hour}
	leave := func(t *testing.T, c *bed.Crowd, keys ...string) {
		ctx, cancel := context.WithCancel(t.Context())
		var gone []<-chan bed.Answer
		for _, key := range keys {
			gone = append(gone, c.Behind(ctx, t, p.Request(key, 1)))
		}
		cancel()
		for _, a := range gone {
			if got := <-a; !errors.Is(got.Err, context.Canceled) {
				t.Errorf("%+v, %v", got.Result, got.Err)
			}
		}
	}
	t.Run("all go away", func(t *testing.T) {
		t.Parallel()
		c := bed.NewCrowd(t)
		tx := c.Hold(t, p, "m", "n")
		leave(t, c, "m", "m", "n", "n")
		closed := make(chan bed.Answer, 1)
		go func() { closed <- bed.Answer{Err: c.Close()} }()
		bed.ResultOf(t, "Close, which waits for statements in flight", closed)
		bed.Commit(t, tx)
		l := bed.NewLimiter(t, c.Business, nil)
		for _, key := range []string{"m", "n"} {
			if r := bed.Must(t)(l.Check(t.Context(), p, key, 0)); !bed.Near(r.Level, bed.HeldLimit/2) {
				t.Errorf("%s: %+v", key, r)
			}
		}
	})
	t.Run("one comes again", func(t *testing.T) {
		t.Parallel()
		c := bed.NewCrowd(t)
		tx := c.Hold(t, p, "m")
		leave(t, c, "m", "m")
		again := c.Behind(t.Context(), t, p.Request("m", 1))
		leave(t, c, "m")
		bed.Commit(t, tx)
		// A request whose statement was in flight may have been counted.
		if r := bed.ResultOf(t, "the key that was held", again); !r.Allowed || r.Level > bed.HeldLimit/2+1+3 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("they have waited too long", func(t *testing.T) {
		t.Parallel()
		address := bed.NewDatabase(t)
		pool := bed.Connect(t, address, bed.FourConnections)
		l := bed.NewLimiter(t, pool, &limiter.Config{Timeout: 50 * time.Millisecond, DisableBreaker: true})
		tx := bed.Begin(t, bed.Connect(t, address), pgx.TxOptions{})
		bed.Must(t)(l.InTx(tx).Allow(t.Context(), p, "m"))
		for range 2 {
			if _, err := l.Allow(t.Context(), p, "m"); !errors.Is(err, limiter.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the row is held: %v", err)
			}
		}
		bed.Commit(t, tx)
		bed.Eventually(t, "the key answers", func(ctx context.Context) (bool, error) {
			if err := pool.Ping(ctx); err != nil { // a slow machine takes more than the Timeout to connect
				return false, err
			}
			r, err := l.Allow(ctx, p, "m")
			if errors.Is(err, limiter.ErrUnavailable) { // a slow machine
				return false, nil
			}
			return r.Allowed, err
		})
	})
}

// TestHeldRowsKeepClose: Close waits for the answers of earlier requests.
func TestHeldRowsKeepClose(t *testing.T) {
	t.Parallel()
	c := bed.NewCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.SlidingWindowLog, Limit: bed.HeldLimit, Period: 1000 * time.Hour}
	tx := c.Hold(t, p, "m")
	first, second := c.Behind(t.Context(), t, p.Request("m", 1)), c.Behind(t.Context(), t, p.Request("m", 2))
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	bed.Eventually(t, "the limiter is closed", func(ctx context.Context) (bool, error) {
		_, err := c.Check(ctx, p, "m", 0)
		return errors.Is(err, limiter.ErrClosed), nil
	})
	select {
	case <-closed:
		t.Fatal("Close returned while a caller waited for a locked row")
	default:
	}
	bed.Commit(t, tx)
	bed.ResultOf(t, "the key that was held", first)
	bed.ResultOf(t, "the key that was held", second)
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestHeldRowsLeaveNoGoroutine counts goroutines, so it is not parallel.
func TestHeldRowsLeaveNoGoroutine(t *testing.T) {
	c := bed.NewCrowd(t)
	p := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: bed.HeldLimit, Period: 1000 * time.Hour}
	keys := []string{"m", "n", "o"}
	tx := c.HoldAsIs(t, p, keys...)
	before := runtime.NumGoroutine()
	c.StallsNobody(t, p, tx, keys, false)
	bed.Eventually(t, "all goroutines have ended", func(context.Context) (bool, error) { return runtime.NumGoroutine() <= before, nil })
}
