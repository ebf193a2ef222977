package sending

import (
	"context"
	"net"
	"time"
)

// A caller that nobody is ahead of sends its statement on its own goroutine, although it
// may leave at any time. So that goroutine waits in two ways only, which both can be ended
// without losing a connection: for a connection, and for an answer that another goroutine
// can go on reading. Whatever else would wait returns store.ErrElsewhere. Then the caller
// leaves or waits as others do, and another goroutine calls the same function with the same
// Context, which goes on with the Rest.

// Own marks c as run by a caller that may leave.
func (c *Context) Own() { c.own = true }

// Hand ends that: c is run by a goroutine that nobody waits on.
func (c *Context) Hand() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.own, c.left = false, false
}

// IsOwn reports whether ctx is run by a caller that may leave.
func IsOwn(ctx context.Context) bool {
	c := Of(ctx)
	return c != nil && c.own
}

// Leave is called for a caller that leaves while it runs c. If nothing was sent, c ends. If
// not, reading the answer ends, unless another goroutine reads it by now.
func (c *Context) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sent {
		c.finish(context.Canceled)
		return
	}
	if !c.own {
		return
	}
	c.left = true
	c.interrupt()
}

// Watch makes reads of conn time out once c's caller has left, and writes too once c has
// ended, until Unwatch.
func (c *Context) Watch(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn = conn; c.err != nil || c.left {
		c.interrupt()
	}
}

// Unwatch ends Watch and reports whether c's caller has left, and c has not ended.
func (c *Context) Unwatch() (left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late {
		_ = c.conn.SetDeadline(time.Time{}) // an error comes again with the next read
	}
	c.conn, c.late = nil, false
	return c.left && c.err == nil
}

// Past is a deadline that has passed.
var Past = time.Unix(1, 0)

// interrupt makes the read in progress time out. c.mu is locked.
func (c *Context) interrupt() {
	if c.conn == nil {
		return
	}
	c.late = true
	if c.err == nil {
		_ = c.conn.SetReadDeadline(Past)
	} else {
		_ = c.conn.SetDeadline(Past)
	}
}
