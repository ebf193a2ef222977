// Package httpapi answers the limiter's methods over HTTP and JSON, and the sub-requests of
// gateways.
//
//   - handler.go: from a request to its route, and back to the log
//   - decide.go, many.go, reserve.go, reserve_all.go, attempt.go, slot.go, grant.go, keys.go: the routes below /v1
//   - check.go: /check/{policy}, for gateways
//   - answer.go, problem.go: bodies of answers and errors
//   - openapi.yaml: the description that is served
package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/inspect"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/webpage"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// Finder finds what the database has about keys: an inspect.Inspector.
type Finder interface {
	Find(ctx context.Context, k inspect.Keys, f inspect.Filter, limit int) (inspect.Found, error)
}

// Config configures a Handler. All fields without a default are required.
type Config struct {
	Limiter  *limiter.Limiter
	Policies *policies.Policies
	// Defaults returns the policies of files. Default: none.
	Defaults func() []policies.Stored
	Keys     Finder
	// KeySecret is the limiter's. Default: nil.
	KeySecret []byte
	Gate      *auth.Gate
	// Local refuses requests for names of other hosts than the loopback, so that no page of
	// another site reaches a server without tokens through a browser. Default: false.
	Local bool
	// Address finds the clients of gateways. Without Proxies, gateways cannot count by address.
	Address httplimit.Address
	// Observe, if set, is called after each request. caller is "" if it had no valid token.
	Observe func(r *http.Request, route, caller string, status int, took time.Duration)
	// Logger receives the errors that answers do not show, at most one of a kind a minute.
	// Default: slog.Default().
	Logger *slog.Logger
}

// Handler answers requests. It is safe for concurrent use.
type Handler struct {
	Config
	checks  *lru.Cache[string, http.Handler] // of /check, by path
	unsaid  throttle.Each                    // errors without a decision, by code
	openapi []byte
}

// New returns a Handler.
func New(config Config) (*Handler, error) {
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	if config.Defaults == nil {
		config.Defaults = func() []policies.Stored { return nil }
	}
	h := &Handler{Config: config}
	var err error
	if h.checks, err = lru.New[string, http.Handler](1024); err != nil {
		return nil, err
	}
	h.openapi, err = Document()
	return h, err
}

// route is what answers the requests of a path.
type route struct {
	method string     // "": all
	needs  auth.Scope // 0: no token
	serve  func(h *Handler, w http.ResponseWriter, r *http.Request) error
}

var routes = map[string]route{
	"/v1/allow":         {http.MethodPost, auth.Decide, verb{(*limiter.Limiter).Do, true}.serve},
	"/v1/allow-up-to":   {http.MethodPost, auth.Decide, costing((*limiter.Limiter).AllowUpTo)},
	"/v1/check":         {http.MethodPost, auth.Decide, costing((*limiter.Limiter).Check)},
	"/v1/allow-all":     {http.MethodPost, auth.Decide, (*Handler).allowAll},
	"/v1/allow-any":     {http.MethodPost, auth.Decide, (*Handler).allowAny},
	"/v1/allow-batch":   {http.MethodPost, auth.Decide, (*Handler).allowBatch},
	"/v1/usage":         {http.MethodGet, auth.Decide, (*Handler).usage},
	"/v1/charge":        {http.MethodPost, auth.Spend, costing((*limiter.Limiter).Charge)},
	"/v1/refund":        {http.MethodPost, auth.Spend, costing((*limiter.Limiter).Refund)},
	"/v1/reserve":       {http.MethodPost, auth.Spend, reserving((*limiter.Limiter).Reserve)},
	"/v1/reserve-up-to": {http.MethodPost, auth.Spend, reserving((*limiter.Limiter).ReserveUpTo)},
	"/v1/reserve-all":   {http.MethodPost, auth.Spend, (*Handler).reserveAll},
	"/v1/settle":        {http.MethodPost, auth.Spend, (*Handler).settle},
	"/v1/cancel":        {http.MethodPost, auth.Spend, (*Handler).cancel},
	"/v1/settle-all":    {http.MethodPost, auth.Spend, (*Handler).settleAll},
	"/v1/cancel-all":    {http.MethodPost, auth.Spend, (*Handler).cancelAll},
	"/v1/attempt":       {http.MethodPost, auth.Spend, (*Handler).attempt},
	"/v1/succeeded":     {http.MethodPost, auth.Spend, (*Handler).succeeded},
	"/v1/failed":        {http.MethodPost, auth.Spend, (*Handler).failed},
	"/v1/acquire":       {http.MethodPost, auth.Spend, (*Handler).acquire},
	"/v1/renew":         {http.MethodPost, auth.Spend, (*Handler).renew},
	"/v1/release":       {http.MethodPost, auth.Spend, (*Handler).release},
	"/v1/grant":         {http.MethodPost, auth.Operate, (*Handler).grant},
	"/v1/block":         {http.MethodPost, auth.Operate, (*Handler).block},
	"/v1/unblock":       {http.MethodPost, auth.Operate, change((*limiter.Limiter).Unblock)},
	"/v1/reset":         {http.MethodPost, auth.Operate, change((*limiter.Limiter).Reset)},
	"/v1/policies":      {http.MethodGet, auth.Operate, (*Handler).policies},
	"/v1/keys":          {http.MethodGet, auth.Operate, (*Handler).keys},
	checkPattern:        {"", auth.Decide, (*Handler).check},
	"/healthz":          {http.MethodGet, 0, (*Handler).healthz},
	"/openapi.json":     {http.MethodGet, 0, (*Handler).document},
}

const (
	checkPath    = "/check/"
	checkPattern = "/check/{policy}"
)

// find returns the route of a request and its pattern.
func find(r *http.Request) (pattern string, _ route, _ error) {
	pattern = r.URL.Path
	if strings.HasPrefix(pattern, checkPath) {
		pattern = checkPattern
	}
	found, known := routes[pattern]
	switch {
	case !known:
		return "none", found, &problem{Status: http.StatusNotFound, Code: "no_route", Detail: "nothing has that path: see /openapi.json"}
	case found.method != "" && r.Method != found.method && !(found.method == http.MethodGet && r.Method == http.MethodHead):
		return pattern, found, &problem{Status: http.StatusMethodNotAllowed, Code: "method", Detail: "the method is " + shortened(r.Method) + ": must be " + found.method, allow: found.method}
	}
	return pattern, found, nil
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	out := &recorder{ResponseWriter: w}
	pattern, route, err := find(r)
	r.Pattern = pattern
	caller := ""
	if h.Observe != nil {
		defer func() { h.Observe(r, pattern, caller, out.sent(), time.Since(begun)) }()
	}
	if err == nil && route.needs != 0 {
		caller, err = h.enter(r, pattern, route.needs)
	}
	if err == nil {
		err = route.serve(h, out, r)
	}
	if err != nil {
		h.fail(out, r, err)
	}
}

// TokenHeader has a token where the gateway needs Authorization for something else. It is the
// dashboard's, too.
const TokenHeader = "Pglimit-Token"

// GatewayHeader marks the sub-request of a gateway that sends no token. A browser sends it for a
// page of another site only after a preflight, which no route answers.
const GatewayHeader = "Pglimit-Gateway"

// enter returns the caller's name.
func (h *Handler) enter(r *http.Request, pattern string, needs auth.Scope) (string, error) {
	if h.Local {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = strings.Trim(r.Host, "[]")
		}
		if !webpage.Loopback(host) {
			return "", &problem{Status: http.StatusForbidden, Code: "host", Detail: "the host is " + shortened(r.Host) + ": without tokens only localhost is answered"}
		}
	}
	token := r.Header.Get(TokenHeader)
	if token == "" {
		token = auth.Bearer(r.Header.Get("Authorization"))
	}
	c, err := h.Gate.Enter(token, needs)
	if err == nil && c.Name == "" && pattern == checkPattern && r.Header.Get(GatewayHeader) == "" {
		err = &problem{Status: http.StatusForbidden, Code: "gateway", Detail: "without a token the gateway must set the header " + GatewayHeader + ", to any value"}
	}
	return c.Name, err
}

// fail answers an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		if out, ok := w.(*recorder); ok {
			out.status = clientClosedRequest
		}
		panic(http.ErrAbortHandler) // nobody reads an answer
	}
	p := problemOf(err)
	if p.Status >= 500 {
		if since, ok := h.unsaid.Next(p.Code, time.Minute); ok {
			h.Logger.ErrorContext(r.Context(), "pglimit: no answer to a request", "route", r.Pattern, "since_last", since, "error", err)
		}
	}
	p.write(w)
}

func (h *Handler) healthz(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
	return nil
}

// clientClosedRequest is nginx's status of a request whose client went away.
const clientClosedRequest = 499

// recorder notes the status of an answer.
type recorder struct {
	http.ResponseWriter
	status int
}

// Unwrap returns the connection's writer, for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// sent returns the status of the answer.
func (w *recorder) sent() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}
