package serve

import (
	"net"
	"sync"
	"sync/atomic"
)

// room is the number of connections that may still be accepted, of all listeners.
type room struct{ free, refused atomic.Int64 }

// bound returns l with connections that count. One too many is closed at once: if it waited, a
// client could keep all others out by connections that it leaves alone.
func (r *room) bound(l net.Listener) net.Listener { return &boundListener{l, r} }

type boundListener struct {
	net.Listener
	room *room
}

// Accept returns the next connection for which there is room.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.room.free.Add(-1) >= 0 {
			return &boundConn{Conn: c, room: l.room}, nil
		}
		l.room.free.Add(1)
		l.room.refused.Add(1)
		_ = c.Close()
	}
}

type boundConn struct {
	net.Conn
	room *room
	once sync.Once
}

// Close closes the connection and gives its place back.
func (c *boundConn) Close() error {
	c.once.Do(func() { c.room.free.Add(1) })
	return c.Conn.Close()
}
