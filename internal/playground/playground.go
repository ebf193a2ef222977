// Package playground serves a web page on which limits can be seen at work, and the
// small HTTP API behind it.
//
// The page sends asks (POST /api/send) and watches a key in a stream of server-sent
// events (GET /api/events). Every decision about a key goes to all streams of the key,
// also those of /limited/, which answers curl as a limited application would. Every
// policy has the name PolicyName, so that no other counts are touched.
package playground

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pglimit/pglimit/internal/playground/api"
	"github.com/pglimit/pglimit/internal/playground/describe"
	"github.com/pglimit/pglimit/internal/playground/hub"
	"github.com/pglimit/pglimit/internal/playground/parse"
	"github.com/pglimit/pglimit/internal/playground/replays"
	"github.com/pglimit/pglimit/internal/playground/web"
	"github.com/pglimit/pglimit/limiter"
)

// PolicyName is the name of every policy here.
const PolicyName = parse.PolicyName

const (
	// maxAsk is how long one ask waits for the database: maxSending of them at once
	// wait for a few connections, maybe to a server far away or a busy one.
	maxRequest = 10 * time.Second
	// How long Serve waits at the end: for answers that are being sent, and for the
	// database to forget the counts.
	maxAnswer  = 2 * time.Second
	forgetTime = 10 * time.Second
)

// Config sets up a Server.
type Config struct {
	// Limiter makes the limiter that decides, from the configuration that it is given.
	// It may add fields that the playground leaves alone, such as KeySecret. It is
	// required.
	Limiter func(*limiter.Config) (*limiter.Limiter, error)
	// Version is pglimit's, and Database names what decides, such as "PostgreSQL 15.4,
	// embedded". The page shows both.
	Version, Database string
	// Command begins the command lines that the page shows. Default: pglimit allow.
	Command []string
	// Host is the host of the address that is listened on. Requests for any other
	// host except the loopback's names are refused, so that a foreign name that
	// resolves to this machine cannot make a browser talk to it. Empty, 0.0.0.0 and ::
	// listen on all addresses and accept any host.
	Host string
	// Logger gets problems that no answer reports. Default: slog.Default().
	Logger *slog.Logger
}

// Server is the playground, an http.Handler that is safe for concurrent use. Close
// it at the end, or let Serve do it.
type Server struct {
	config  Config
	hub     *hub.Hub
	replays *replays.Server
	handler http.Handler
	pause   time.Duration // bound of a pause in a body
	grace   time.Duration // bound of the wait at the end for answers that are being sent
}

// New returns a Server. An error names what is missing in config, or is the error of
// Config.Limiter.
func New(config Config) (*Server, error) {
	if config.Limiter == nil {
		return nil, errors.New("playground: Config.Limiter is nil: give a function that makes a limiter")
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if len(config.Command) == 0 {
		config.Command = []string{"pglimit", "allow"}
	}
	s := &Server{config: config, replays: replays.New(), pause: api.MaxPause, grace: maxAnswer}
	var err error
	// Without a deny cache, so that each answer is the database's.
	if s.hub, err = hub.New(config.Limiter, limiter.Config{DisableDenyCache: true, Timeout: maxRequest, Logger: config.Logger}); err != nil {
		return nil, fmt.Errorf("playground: %w", err)
	}
	if s.handler, err = s.routes(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	if err := web.Add(mux); err != nil {
		return nil, err
	}
	mux.Handle("GET /api/setup", api.Answer(s.setup))
	mux.Handle("POST /api/describe", describe.Handler(s.config.Command))
	mux.Handle("POST /api/send", newSender(s.hub))
	mux.Handle("POST /api/reset", reset(s.hub))
	mux.Handle("GET /api/events", hub.Handler(s.hub))
	s.replays.Add(mux)
	mux.Handle("/api/", api.Answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &api.Problem{Status: http.StatusNotFound, Message: "there is nothing to be had by that path and method"}
	}))
	mux.Handle("GET /limited/{algorithm}", limited(s.hub, s.config.Logger))
	return guard(s.config.Host, mux), nil
}

// setup answers GET /api/setup: what the page starts with.
func (s *Server) setup(http.ResponseWriter, *http.Request) (any, error) {
	type setup struct {
		Version     string           `json:"version"`
		Database    string           `json:"database"`
		Policies    []limiter.Policy `json:"policies"`
		MaxLogBytes int64            `json:"max_log_bytes"` // of POST /api/replay
	}
	answer := setup{Version: s.config.Version, Database: s.config.Database, MaxLogBytes: replays.MaxUpload}
	for _, a := range limiter.Algorithms() {
		answer.Policies = append(answer.Policies, limiter.Policy{Name: PolicyName, Algorithm: a, Limit: 10, Period: 10 * time.Second})
	}
	return answer, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	api.LimitPauses(w, r, s.pause)
	s.handler.ServeHTTP(w, r)
}

// Serve answers on the listeners until ctx ends, which is not an error, or one of them
// breaks. Then it ends the streams and all that waits, and closes the Server and the
// listeners. It logs keys that could not be forgotten.
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
	// Browsers open connections in advance, and Shutdown would wait for those.
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

// end waits for the answers that are being sent, and closes everything.
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

// Close ends all streams and refuses new ones, forgets the counts of the keys that were
// used, and closes the limiter. It waits for the database until ctx ends. The error
// names the keys that could not be forgotten.
func (s *Server) Close(ctx context.Context) error {
	s.hub.Close()
	return errors.Join(s.hub.ForgetAll(ctx), s.hub.Limiter.Close())
}
