// Package site has what the web pages of the command share: listening, a guard against
// other sites, the files of a page, and serving until the end.
package site

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
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
