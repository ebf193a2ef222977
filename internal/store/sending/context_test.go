package sending

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// group has the Contexts of one timeout.
type group struct {
	mu  sync.Mutex
	all Deadlines[*Context]
}

func newGroup() *group {
	g := new(group)
	g.all = NewDeadlines[*Context](&g.mu)
	return g
}

func (g *group) begin(timeout time.Duration) *Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := new(Context)
	c.Begin(timeout, &g.all)
	return c
}

// look returns the number of Contexts that are remembered, and whether the timer runs.
func (g *group) look() (remembered int, armed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.all.begun), g.all.armed
}

// TestContextEndsInItsTime: a Context ends by the timeout with all contexts derived from it,
// and each of them reports that the timeout did it.
func TestContextEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, start := newGroup().begin(time.Second), time.Now()
		derived, stop := context.WithCancel(context.WithValue(c, new(int), "value"))
		defer stop()
		after := make(chan struct{})
		context.AfterFunc(c, func() { close(after) })
		if by, ok := c.Deadline(); !ok || by.Sub(start) != time.Second || c.Err() != nil || store.EndedByTimeout(derived) || Of(derived) != c {
			t.Errorf("deadline %v, %v", by, c.Err())
		}
		for _, done := range []<-chan struct{}{derived.Done(), c.Done(), after} {
			<-done
		}
		for _, ctx := range []context.Context{c, derived} {
			if time.Since(start) != time.Second || ctx.Err() != context.DeadlineExceeded || !store.EndedByTimeout(ctx) {
				t.Errorf("%v after %v", ctx.Err(), time.Since(start))
			}
		}
	})
}

// TestContextIsCancelled: that is no timeout, and calls what waits for the end, unless it
// was stopped.
func TestContextIsCancelled(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			g := newGroup()
			c := g.begin(timeout)
			var called atomic.Int64
			context.AfterFunc(c, func() { called.Add(1) })
			stopped := context.AfterFunc(c, func() { called.Add(10) })
			if !stopped() || stopped() {
				t.Error("it was stopped not once")
			}
			c.Cancel()
			c.Cancel()
			<-c.Done()
			late := context.AfterFunc(c, func() { called.Add(100) })
			synctest.Wait()
			if called.Load() != 101 || late() || !errors.Is(c.Err(), context.Canceled) || store.EndedByTimeout(c) {
				t.Errorf("called %d, %v", called.Load(), c.Err())
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, armed := g.look(); n > 0 || armed {
				t.Error("it is still watched")
			}
		})
	}
}

// TestContextsRest: there is no timer while none is in flight, and none that has ended is
// remembered for long.
func TestContextsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGroup()
		for range 10_000 {
			g.begin(time.Second).Cancel()
		}
		if n, armed := g.look(); n > 2*fewBegun || !armed {
			t.Errorf("it remembers %d", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n, armed := g.look(); n > 0 || armed {
			t.Errorf("it remembers %d, and looks again: %v", n, armed)
		}
	})
}

// TestContextIsWithdrawn: a statement without a connection, whose last caller was told that
// nothing was sent, does not end as one that the database did not answer. A circuit breaker
// would count that.
func TestContextIsWithdrawn(t *testing.T) {
	for _, leave := range []bool{false, true} {
		c := newGroup().begin(time.Second)
		if c.Withdraw(1) || c.Err() != nil {
			t.Error("it was withdrawn while a caller waits for it")
		}
		if leave {
			c.Leave()
		} else if !c.Withdraw(0) {
			t.Error("it was not withdrawn")
		}
		if c.Err() != context.Canceled || store.EndedByTimeout(c) || Sends(c) || !NotSent(c) {
			t.Errorf("withdrawn: %v, by the timeout: %v", c.Err(), store.EndedByTimeout(c))
		}
	}
}

// TestContextIsHanded: a caller that leaves late does not end the read of the goroutine that
// has gone on for it, since nobody would go on after that one.
func TestContextIsHanded(t *testing.T) {
	ctx := newGroup().begin(0)
	ctx.Own()
	Sends(ctx)
	ctx.Hand()
	ctx.Leave()
	client, _ := net.Pipe()
	ctx.Watch(client)
	if ctx.Unwatch() {
		t.Error("its read ends for the caller that has left")
	}
}

// TestContextInterruptsReads: whether the caller leaves or the Context ends, before Watch or
// during it, a read of the connection times out. After Unwatch the connection is as before.
func TestContextInterruptsReads(t *testing.T) {
	for _, during := range []bool{false, true} {
		for name, c := range map[string]struct {
			stop func(*Context)
			left bool
		}{
			"leave":         {(*Context).Leave, true},
			"end":           {(*Context).Cancel, false},
			"leave and end": {func(c *Context) { c.Leave(); c.Cancel() }, false},
		} {
			ctx := newGroup().begin(0)
			ctx.Own()
			Sends(ctx)
			client, server := net.Pipe()
			if !during {
				c.stop(ctx)
			}
			ctx.Watch(client)
			if during {
				time.AfterFunc(0, func() { c.stop(ctx) })
			}
			_, err := client.Read(make([]byte, 1))
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s, %v: %v", name, during, err)
			}
			if during && name == "leave and end" {
				<-ctx.Done()
			}
			if left := ctx.Unwatch(); left != c.left {
				t.Errorf("%s, %v: left %v", name, during, left)
			}
			ctx.Leave() // when nothing watches
			go func() { _, _ = server.Write([]byte{7}) }()
			read := make([]byte, 1)
			if _, err := client.Read(read); err != nil || read[0] != 7 {
				t.Errorf("%s, %v: afterwards %v, %v", name, during, read, err)
			}
		}
	}
}
