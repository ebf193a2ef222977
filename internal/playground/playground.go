// Package playground is a web page on which limits can be seen at work, and the
// small HTTP API behind it.
//
// The page sends asks (POST /api/send) and watches them in a stream of
// server-sent events (GET /api/events), in which every decision about a key is
// told to all who watch that key: those of /limited/, which is for curl, too. All
// is counted under the policy name PolicyName, so that nobody's own counts can be
// touched.
package playground

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// PolicyName is the name of every policy here.
const PolicyName = "playground"

// Bounds of what one server bears.
const (
	maxKey     = 256  // bytes
	maxKeys    = 1000 // in use at once
	maxTimes   = 100  // of each ask in one POST /api/send
	maxJSON    = 64 << 10
	maxSending = 128 // asks of /api/send in flight
	// maxAsk is how long one ask waits for the database: maxSending of them at once
	// wait for a few connections, maybe to a server far away or a busy one.
	maxAsk = 10 * time.Second
)

// Config sets up a Server.
type Config struct {
	// Limiter makes the limiter that decides, with the configuration that it is
	// given; fields that the playground leaves alone, such as KeySecret, may be
	// added. It has no default.
	Limiter func(*limiter.Config) (*limiter.Limiter, error)
	// Version is pglimit's, and Database what decides, such as "PostgreSQL 15.4,
	// embedded": the page shows both.
	Version, Database string
	// Command is what the command lines shown on the page begin with. Empty is
	// pglimit allow.
	Command []string
	// Host is the host of the address that is listened on. Requests for any other
	// host but the loopback's names are refused, so that no foreign name that
	// resolves to this machine gets a browser to talk to it. Empty, 0.0.0.0 and ::,
	// which listen on all addresses, take any.
	Host string
	// Logger gets what goes wrong beyond a request's answer. nil is slog.Default().
	Logger *slog.Logger
}

// Server is the playground, an http.Handler that is safe for concurrent use. Close
// it at the end, or let Serve do all.
type Server struct {
	config  Config
	limiter *limiter.Limiter
	hub     *hub
	reports reports
	// As long as what they bound: asks of /api/send in flight, and replays.
	sending, replaying chan struct{}
	upload, unpacked   int64         // bytes of a log, as sent and as read
	clients            int           // of a log, at most
	pause              time.Duration // of a body
	wait               time.Duration // of a replay, for its turn
	grace              time.Duration // at the end, for answers that are on their way
	handler            http.Handler
	ctx                context.Context // ends at Close
	stop               context.CancelFunc
	workers            sync.WaitGroup // the hub's samplers
}

// New returns a Server. An error says what is missing in config, or is that of
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
	s := &Server{config: config, sending: make(chan struct{}, maxSending), replaying: make(chan struct{}, maxReplays)}
	s.upload, s.unpacked, s.clients, s.pause, s.wait, s.grace = maxUpload, maxUnpacked, maxClients, maxPause, maxWait, maxAnswer
	s.reports.pages = map[string][]byte{}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.hub = newHub(s)
	var err error
	// Each answer is the database's.
	if s.limiter, err = config.Limiter(&limiter.Config{Observe: s.hub.observe, DenyCacheTTL: -1, Timeout: maxAsk, Logger: config.Logger}); err != nil {
		return nil, fmt.Errorf("playground: %w", err)
	}
	if s.handler, err = s.routes(); err != nil {
		return nil, err
	}
	return s, nil
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &body{ReadCloser: r.Body, ctx: r.Context(), out: http.NewResponseController(w), pause: s.pause}
	}
	s.handler.ServeHTTP(w, r)
}

func (s *Server) routes() (http.Handler, error) {
	mux := http.NewServeMux()
	if err := addPage(mux); err != nil {
		return nil, err
	}
	mux.Handle("GET /api/setup", answer(s.setup))
	mux.Handle("POST /api/describe", answer(s.describe))
	mux.Handle("POST /api/send", answer(s.send))
	mux.Handle("POST /api/reset", answer(s.reset))
	mux.Handle("POST /api/replay", answer(s.replay))
	mux.HandleFunc("GET /reports/{id}", s.report)
	mux.HandleFunc("GET /api/events", s.events)
	mux.Handle("/api/", answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, &problem{status: http.StatusNotFound, Message: "there is nothing to be had by that path and method"}
	}))
	limited := httplimit.New(s.limiter, asked, httplimit.Logger(s.config.Logger))(http.HandlerFunc(allowed))
	mux.Handle("GET /limited/{algorithm}", s.forCurl(limited))
	return s.guard(mux), nil
}

// Close ends all streams and makes new ones impossible, forgets what was counted
// for the keys that were used, and closes the limiter. It waits for the database
// as long as ctx allows; what could not be forgotten is an error.
func (s *Server) Close(ctx context.Context) error {
	s.hub.close()
	s.stop()
	s.workers.Wait()
	return errors.Join(s.forgetAll(ctx), s.limiter.Close())
}

// setup answers what the page begins with.
func (s *Server) setup(http.ResponseWriter, *http.Request) (any, error) {
	type setup struct {
		Version     string           `json:"version"`
		Database    string           `json:"database"`
		Policies    []limiter.Policy `json:"policies"`
		MaxLogBytes int64            `json:"max_log_bytes"` // of POST /api/replay
	}
	answer := setup{Version: s.config.Version, Database: s.config.Database, MaxLogBytes: s.upload}
	for _, a := range limiter.Algorithms() {
		answer.Policies = append(answer.Policies, limiter.Policy{Name: PolicyName, Algorithm: a, Limit: 10, Period: 10 * time.Second})
	}
	return answer, nil
}
