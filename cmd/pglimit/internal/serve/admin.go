package serve

import (
	"io"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
)

// admin returns the handler of the admin address. page and rate may be nil.
func (s *Server) admin(page http.Handler, rate *ratelimit.Server) http.Handler {
	mux := http.NewServeMux()
	say := func(status int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text+"\n")
		}
	}
	mux.HandleFunc("GET /healthz", say(http.StatusOK, "ok"))
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		// It does not ask the database: without one, FailOpen and FailLocal still answer.
		if s.ready.Load() {
			say(http.StatusOK, "ready")(w, r)
			return
		}
		say(http.StatusServiceUnavailable, "not ready: it waits for the database, or shuts down")(w, r)
	})
	metrics := prometheus.Gatherers{s.telemetry.registry}
	if rate != nil {
		metrics = append(metrics, prometheus.GathererFunc(rate.Gather))
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	if page == nil {
		mux.HandleFunc("/", say(http.StatusNotFound, "the dashboard needs --tokens, or an --admin address of this machine"))
	} else {
		mux.Handle("/", s.signedIn(page))
	}
	return mux
}

// signedIn lets a browser see the dashboard with a token of an operator as its password, since
// it shows keys.
func (s *Server) signedIn(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, token, _ := r.BasicAuth()
		if _, err := s.gate.Enter(token, auth.Operate); err != nil {
			w.Header().Set("WWW-Authenticate", `Basic realm="pglimit: any name, and a token as the password", charset="UTF-8"`)
			http.Error(w, "sign in with any name, and a token with the scope operate as the password", http.StatusUnauthorized)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// later is a handler that is set later.
type later struct{ handler atomic.Pointer[http.Handler] }

func (l *later) set(h http.Handler) { l.handler.Store(&h) }

// ServeHTTP answers by the handler, or that there is none yet.
func (l *later) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	if r.URL.Path == "/healthz" {
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, `{"type":"about:blank","title":"Service Unavailable","status":503,"code":"unavailable","detail":"The database did not answer since the start. Nothing was counted."}`+"\n")
}
