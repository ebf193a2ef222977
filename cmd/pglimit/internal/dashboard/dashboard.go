// Package dashboard serves a web page for operators, and its HTTP API: policies and
// their history, keys, denials and the doctor's checks.
//
// The page reads through a Source. It changes nothing, unless the server has a token:
// then a request with the token can change policies, overrides and keys. Keys are only in
// bodies of requests and in the fragment of the page's URL, so that no log of URLs has
// them.
package dashboard

import (
	"context"
	"embed"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage/api"
)

//go:embed web
var files embed.FS

// pagePolicy is the page's Content-Security-Policy. It allows only files of this
// server, and no inline script or style.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const (
	// maxCalls bounds the calls of the Source in flight that read, so that open tabs do not
	// occupy the database. As many more may change keys.
	maxCalls = 4
	// maxAnswer is how long Serve waits at the end for answers in progress.
	maxAnswer = 2 * time.Second
)

// Config configures a Server.
type Config struct {
	// Source has the data. Required.
	Source Source
	// Version is pglimit's version. Database names the database, such as "shop at
	// localhost:5432, PostgreSQL 15.4". The page shows both.
	Version, Database string
	// Hashed says that the tables have HMACs instead of keys.
	Hashed bool
	// Host is the host of the address that the server listens on, as in site.Guard.
	Host string
	// Token allows requests that have it in the header Pglimit-Token to change keys.
	// Empty: nothing can be changed.
	Token string
	// Refresh is the time between two requests of the page for new data. Default: 3s.
	Refresh time.Duration
	// Timeout bounds a call of the Source. Default: 10s.
	Timeout time.Duration
	// Logger receives each change, without the key, and errors that no answer reports.
	// Default: slog.Default().
	Logger *slog.Logger
}

// Server is the dashboard: an http.Handler, safe for concurrent use.
type Server struct {
	config  Config
	handler http.Handler
	// One token for each call of the Source in flight. Changes do not wait for reads.
	reads, changes chan struct{}
	pause          time.Duration // longest pause of a client
}

// New returns a Server. The error is that of a file of the page.
func New(config Config) (*Server, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Refresh <= 0 {
		config.Refresh = 3 * time.Second
	}
	if config.Timeout <= 0 {
		config.Timeout = 10 * time.Second
	}
	s := &Server{config: config, reads: make(chan struct{}, maxCalls), changes: make(chan struct{}, maxCalls), pause: api.MaxPause}
	mux := http.NewServeMux()
	mux.Handle("GET /api/setup", api.Answer(s.setup))
	s.addReads(mux)
	s.addWrites(mux)
	s.addEdits(mux)
	var err error
	s.handler, err = webpage.Guard{Name: "dashboard", Host: config.Host, Policy: pagePolicy}.Handler(mux, files)
	return s, err
}

// setup answers GET /api/setup, the page's first request.
func (s *Server) setup(_ http.ResponseWriter, r *http.Request) (any, error) {
	type setup struct {
		Version  string `json:"version"`
		Database string `json:"database"`
		Hashed   bool   `json:"hashed"`
		Refresh  int64  `json:"refresh_ms"`
		Writable bool   `json:"writable"` // whether the server has a token
		Write    bool   `json:"write"`    // whether this request has it
	}
	c := s.config
	return setup{c.Version, c.Database, c.Hashed, c.Refresh.Milliseconds(), c.Token != "", s.hasToken(r)}, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handler.ServeHTTP(api.Pace(w, r, s.pause), r)
}

// Serve serves the listeners until ctx ends, which is not an error, or a listener
// fails. Then it ends all requests and closes the listeners.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	return webpage.Serve(ctx, s, s.config.Logger, maxAnswer, listeners...)
}
