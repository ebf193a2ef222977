// Package sending has the contexts of statements that no caller can cancel: ending a
// context of pgx costs its connection.
package sending

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Context is the context of one statement, or of one transaction. It costs less than one of
// the standard library: all of them have one timer, and what waits for the end of one, as
// pgx does, needs no goroutine.
type Context struct {
	ends time.Time // zero: never

	mu   sync.Mutex
	done chan struct{} // made when it is asked for
	err  error
	sent bool      // it has a connection
	then []*func() // after the end

	own  bool     // it runs on the goroutine of a caller that may leave
	left bool     // that caller has left
	conn net.Conn // whose answer is read; nil: none
	late bool     // reads of conn time out

	Answers *atomic.Int64 // see Answered; may be nil
	Rest    any           // what the next goroutine goes on with; the one that runs it uses it
}

// contextKey is the key of a context's value that is its Context.
type contextKey struct{}

// Of returns the Context that ctx was derived from, or nil.
func Of(ctx context.Context) *Context {
	c, _ := ctx.Value(contextKey{}).(*Context)
	return c
}

// Answered counts an answer of the server to a part of what ctx is of: its Context's Answers.
func Answered(ctx context.Context) {
	if c := Of(ctx); c != nil && c.Answers != nil {
		c.Answers.Add(1)
	}
}

// Begin begins a new Context, which the sender ends by Cancel. It ends itself after timeout,
// if that is positive; all has the Contexts of that timeout.
func (c *Context) Begin(timeout time.Duration, all *Deadlines[*Context]) {
	if timeout > 0 {
		c.ends = time.Now().Add(timeout)
		all.Add(c)
	}
}

// Sends is called with a connection for a statement, before anything is sent. If it returns
// false, nothing may be sent: the callers were told so.
func Sends(ctx context.Context) bool {
	c := Of(ctx)
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent = c.sent || c.err == nil
	return c.sent
}

// NotSent reports whether ctx has ended before anything was sent. A context that is not
// derived from a Context does not know.
func NotSent(ctx context.Context) bool {
	if c := Of(ctx); c != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.err != nil && !c.sent
	}
	return ctx.Err() != nil
}

// Deadline implements context.Context, as the other methods do.
func (c *Context) Deadline() (time.Time, bool) { return c.ends, !c.ends.IsZero() }

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.err != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Value implements context.Context.
func (c *Context) Value(key any) any {
	switch {
	case key == contextKey{}:
		return c
	case key == store.TimeoutKey && c.Err() == context.DeadlineExceeded:
		return true
	}
	return nil
}

// AfterFunc makes context.AfterFunc and derived contexts work without a goroutine.
func (c *Context) AfterFunc(then func()) (stop func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		go then()
		return func() bool { return false }
	}
	c.then = append(c.then, &then)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, t := range c.then {
			if t == &then {
				c.then = append(c.then[:i], c.then[i+1:]...)
				return true
			}
		}
		return false
	}
}

// Cancel ends the context unless it has ended.
func (c *Context) Cancel() { c.end(context.Canceled) }

// Withdraw ends the context if no caller waits for it any longer and nothing was sent. It
// reports whether nothing was or will be sent. That is no timeout of the database: a
// connection may come free before the pool's error is looked at.
func (c *Context) Withdraw(waiting int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent || c.err == nil && waiting > 0 {
		return false
	}
	c.finish(context.Canceled)
	return true
}

func (c *Context) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish(err)
}

// finish ends the context unless it has ended. c.mu is locked.
func (c *Context) finish(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	if c.done != nil {
		close(c.done)
	}
	for _, then := range c.then {
		go (*then)()
	}
	c.then = nil
	c.interrupt()
}

// Ended implements Timed, as the other methods do.
func (c *Context) Ended() bool { return c.Err() != nil }

// Due implements Timed.
func (c *Context) Due() time.Time { return c.ends }

// Expire implements Timed.
func (c *Context) Expire(bool) { c.end(context.DeadlineExceeded) }
