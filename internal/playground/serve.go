package playground

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// How long Serve waits at the end: for answers that are on their way, and for the
// database to forget what was counted.
const (
	maxAnswer  = 2 * time.Second
	forgetTime = 10 * time.Second
)

// Listen listens on addr, as in "localhost:8080", and returns the URL to be opened.
// On localhost it takes IPv4's and IPv6's, where the machine has both; port 0 is any
// that is free.
func Listen(ctx context.Context, addr string) (_ []net.Listener, url string, err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, "", fmt.Errorf("the address %q is not of the form host:port, such as localhost:8080", addr)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: take another address or free this one; localhost:0 is any port that is free", err)
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
	// Both or none: a browser takes either, and one might be somebody else's.
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
		if port != "0" || try == 10 { // a free port of the one may be taken of the other
			return nil, "", err
		}
	}
}

func portOf(l net.Listener) string { return strconv.Itoa(l.Addr().(*net.TCPAddr).Port) }

// Serve answers on the listeners until ctx ends, which is no error, or one of them
// breaks; then it ends the streams and all that waits, and closes the Server and the
// listeners. That keys could not be forgotten is logged.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.config.Logger.Handler(), slog.LevelWarn),
	}
	// Browsers open connections in advance, which Shutdown would wait for.
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
	case err = <-ended: // a listener broke
	}
	s.end(context.WithoutCancel(ctx), server)
	return err
}

// end lets the answers go out that are on their way, and closes all.
func (s *Server) end(ctx context.Context, server *http.Server) {
	grace, cancel := context.WithTimeout(ctx, s.grace)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		s.config.Logger.Warn("pglimit: requests were cut off while they were answered", "error", err)
		_ = server.Close()
	}
	forget, cancel := context.WithTimeout(ctx, forgetTime)
	defer cancel()
	if err := s.Close(forget); err != nil {
		s.config.Logger.Warn("pglimit: the keys used on the playground could not be forgotten", "error", err)
	}
}
