// Package webpage has what the web pages of the command share: listening, a guard against
// other sites, the files of a page, and serving until the end.
package webpage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Serve serves the listeners until ctx ends, which is not an error, or a listener
// fails. Then it ends the contexts of all requests, waits up to grace for their answers,
// and closes the listeners. logger receives errors that no answer reports.
func Serve(ctx context.Context, h http.Handler, logger *slog.Logger, grace time.Duration, listeners ...net.Listener) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{
		Handler:           h,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
	// Browsers open connections in advance; Shutdown would wait for them.
	var unused sync.Map
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if unused.Delete(c); state == http.StateNew {
			unused.Store(c, nil)
		}
	}
	server.RegisterOnShutdown(func() {
		stop()
		unused.Range(func(c, _ any) bool { _ = c.(net.Conn).Close(); return true })
	})
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() { ended <- server.Serve(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended: // a listener failed
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(last); err != nil {
		logger.Warn("pglimit: some requests were ended before their answer was complete", "error", err)
		_ = server.Close()
	}
	return err
}

// Graceful is a server that ends without cutting off an answer: a client may use an idle
// connection in the moment in which the server closes it.
type Graceful struct {
	*http.Server
	drains atomic.Bool
	open   atomic.Int64 // connections
}

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
		if state == http.StateNew {
			g.open.Add(1)
		} else if state == http.StateClosed { // none is hijacked
			g.open.Add(-1)
		}
	}
	return g
}

// Drain makes each answer end its connection, so that clients go elsewhere.
func (g *Graceful) Drain() { g.drains.Store(true) }

// Shutdown drains until all connections have ended, for at most idle, which is the time that clients
// have to use a connection again or to close it. Then it shuts the server down.
func (g *Graceful) Shutdown(ctx context.Context, idle time.Duration) error {
	g.Drain()
	for until := time.Now().Add(idle); g.open.Load() > 0 && time.Now().Before(until) && ctx.Err() == nil; {
		time.Sleep(5 * time.Millisecond)
	}
	return g.Server.Shutdown(ctx)
}

// Listen listens on addr, such as "localhost:8080", and returns the URL to open. On
// localhost it listens on the addresses of both IPv4 and IPv6, if the machine has both.
// Port 0 selects any free port.
func Listen(ctx context.Context, addr string) (_ []net.Listener, url string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", fmt.Errorf("the address %q is not of the form host:port, such as localhost:8080", addr)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: use another address or free this one; localhost:0 selects any free port", err)
		}
	}()
	var config net.ListenConfig
	listen := func(host, port string) (net.Listener, error) {
		return config.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	}
	if host != "localhost" {
		l, err := listen(host, port)
		if err != nil {
			return nil, "", err
		}
		if everywhere(host) {
			host = "localhost"
		}
		return []net.Listener{l}, "http://" + net.JoinHostPort(host, portOf(l)), nil
	}
	var hosts []string
	for _, host := range []string{"127.0.0.1", "::1"} {
		if l, err := listen(host, "0"); err == nil {
			hosts = append(hosts, host)
			_ = l.Close()
		}
	}
	if len(hosts) == 0 {
		return nil, "", errors.New("this machine has neither 127.0.0.1 nor ::1")
	}
	// Listen on both or none: a browser may use either, and the other might belong to
	// another program.
	for try := 1; ; try++ {
		var all []net.Listener
		at := port
		for _, host := range hosts {
			var l net.Listener
			if l, err = listen(host, at); err != nil {
				break
			}
			all, at = append(all, l), portOf(l)
		}
		if err == nil {
			return all, "http://localhost:" + at, nil
		}
		for _, l := range all {
			_ = l.Close()
		}
		if port != "0" || try == 10 { // a port that is free on one address may be taken on the other
			return nil, "", err
		}
	}
}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

// Loopback reports whether only this machine can reach a host of an address.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && ip.Unmap().IsLoopback()
}

// everywhere reports whether listening on host means listening on all addresses.
func everywhere(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.Unmap().IsUnspecified()
}
