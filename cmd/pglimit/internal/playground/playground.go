// Package playground serves a web page that shows limits at work, and its HTTP API.
//
// The page sends requests (POST /api/send) and watches a key in a stream of
// server-sent events (GET /api/events). /limited/ answers curl like a limited
// application. All streams of a key receive every decision about it, from either.
// Every policy has the name PolicyName, or begins so, and no other counts change.
package playground

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
	"github.com/pglimit/pglimit/limiter"
)

//go:embed web
var files embed.FS

// pagePolicy is the page's Content-Security-Policy. It allows only files of this
// server, and no inline script or style.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const (
	// maxRequest bounds one request to the database. Many share a few connections,
	// possibly to a distant or busy server.
	maxRequest = 10 * time.Second
	// How long Serve waits at the end: for answers in progress, and for the database to
	// delete the counts.
	maxAnswer  = 2 * time.Second
	forgetTime = 10 * time.Second
)

// Config configures a Server.
type Config struct {
	// Limiter returns a limiter with the given configuration. It may set fields that
	// are zero, such as KeySecret. Required.
	Limiter func(*limiter.Config) (*limiter.Limiter, error)
	// Version is pglimit's version. Database names the database, such as
	// "PostgreSQL 15.4, embedded". The page shows it; GET /api/setup has both.
	Version, Database string
	// Command begins the command lines that the page shows. Default: pglimit allow.
	Command []string
	// Host is the host of the address that the server listens on, as in site.Guard.
	Host string
	// Logger receives errors that no answer reports. Default: slog.Default().
	Logger *slog.Logger
}

// Server is the playground: an http.Handler, safe for concurrent use. Close it at the
// end, or let Serve do it.
type Server struct {
	config  Config
	hub     *Hub
	replays *replayer
	handler http.Handler
	pause   time.Duration // longest pause of a client
	grace   time.Duration // longest wait at the end for answers in progress
}

// New returns a Server. The error is that of Config.Limiter, or of a file of the page.
func New(config Config) (*Server, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if len(config.Command) == 0 {
		config.Command = []string{"pglimit", "allow"}
	}
	s := &Server{config: config, replays: newReplayer(), pause: api.MaxPause, grace: maxAnswer}
	var err error
	// Without a deny cache, every answer comes from the database.
	if s.hub, err = newHub(config.Limiter, limiter.Config{DisableDenyCache: true, Timeout: maxRequest, Logger: config.Logger}); err != nil {
		return nil, fmt.Errorf("playground: %w", err)
	}
	if s.handler, err = s.routes(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	mux.Handle("GET /api/setup", api.Answer(s.setup))
	mux.Handle("POST /api/describe", describeHandler(s.config.Command))
	mux.Handle("POST /api/send", api.Answer(s.send))
	mux.Handle("POST /api/jobs", api.Answer(s.jobs))
	mux.Handle("POST /api/grant", api.Answer(s.grant))
	mux.Handle("POST /api/reset", api.Answer(s.reset))
	mux.Handle("GET /api/events", streamHandler(s.hub))
	s.replays.add(mux)
	mux.Handle("GET /limited/{algorithm}", limited(s.hub, s.config.Logger))
	guard := webpage.Guard{
		Name: "playground", Host: s.config.Host, Policy: pagePolicy,
		Bare: func(path string) bool { return strings.HasPrefix(path, "/limited/") }, // curl shows only the limiter's headers there
	}
	return guard.Handler(mux, files)
}

// setup answers GET /api/setup, the page's first request.
func (s *Server) setup(http.ResponseWriter, *http.Request) (any, error) {
	type setup struct {
		Version     string           `json:"version"`
		Database    string           `json:"database"`
		Policies    []limiter.Policy `json:"policies"`
		MaxLogBytes int64            `json:"max_log_bytes"` // of POST /api/replay
	}
	answer := setup{Version: s.config.Version, Database: s.config.Database, MaxLogBytes: maxUpload}
	for _, a := range limiter.Algorithms() {
		answer.Policies = append(answer.Policies, limiter.Policy{Name: nameOf(a), Algorithm: a, Limit: 10, Period: 10 * time.Second})
	}
	return answer, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handler.ServeHTTP(api.Pace(w, r, s.pause), r)
}

// Serve serves the listeners until ctx ends, which is not an error, or a listener
// fails. Then it ends all streams and waiting requests, and closes the Server and the
// listeners. It logs keys that could not be reset.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	err := webpage.Serve(ctx, s, s.config.Logger, s.grace, listeners...)
	forget, cancel := context.WithTimeout(context.WithoutCancel(ctx), forgetTime)
	defer cancel()
	if err := s.Close(forget); err != nil {
		s.config.Logger.Warn("pglimit: some keys of the playground could not be reset", "error", err)
	}
	return err
}

// Close ends all streams and refuses new ones, resets the keys that were used, and
// closes the limiter. It waits for the database until ctx ends. The error names the
// keys that could not be reset.
func (s *Server) Close(ctx context.Context) error {
	s.hub.Close()
	return errors.Join(s.hub.ForgetAll(ctx), s.hub.Limiter.Close())
}
