package site

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Graceful is a server that ends without cutting off an answer: a client may use an idle
// connection in the moment in which the server closes it.
type Graceful struct {
	*http.Server
	drains atomic.Bool
	open   atomic.Int64 // connections
}

// idleFor is how long Shutdown waits for clients to use their idle connections, or to close them.
const idleFor = 2 * time.Second

// NewGraceful returns a Graceful. It sets the server's ConnState and wraps its Handler.
func NewGraceful(server *http.Server) *Graceful {
	g, h := &Graceful{Server: server}, server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.drains.Load() {
			w.Header().Set("Connection", "close") // HTTP/2 sends GOAWAY instead
		}
		h.ServeHTTP(w, r)
	})
	server.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			g.open.Add(1)
		case http.StateClosed, http.StateHijacked:
			g.open.Add(-1)
		}
	}
	return g
}

// Drain makes each answer end its connection, so that clients go elsewhere.
func (g *Graceful) Drain() { g.drains.Store(true) }

// Shutdown drains until all connections have ended, for idleFor or half of the time that ctx has,
// and then shuts the server down.
func (g *Graceful) Shutdown(ctx context.Context) error {
	g.Drain()
	until := time.Now().Add(idleFor)
	if end, ok := ctx.Deadline(); ok {
		until = time.Now().Add(min(idleFor, time.Until(end)/2))
	}
	for g.open.Load() > 0 && time.Now().Before(until) {
		time.Sleep(5 * time.Millisecond)
	}
	return g.Server.Shutdown(ctx)
}
