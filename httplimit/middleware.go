package httplimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/pglimit/pglimit/httplimit/internal/status"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/limiter"
)

// New returns middleware that limits HTTP requests by l. It calls the next handler only
// if l grants all that limits returns for the HTTP request.
//
//	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, perClient))
//	http.ListenAndServe(":8080", limit(mux))
//
// With a LeakyBucketQueue the HTTP request waits for its turn, within its context. If
// the turn comes after the context's deadline, the request is denied immediately. If the
// context is cancelled, the units go back, as with limiter.Limiter.DoWait and WaitAll.
//
// Responses have the fields of SetHeader if the request passed or was denied. A request
// that does not pass gets a response of application/problem+json:
//
//	429  denied: by Deny, or by WithOnDeny
//	413  denied because it costs more than a limit ever allows: likewise
//	403  no key (ErrNoKey), unless WithNoKey(Pass) is set
//	400  a key of over 1,024 bytes, with a NUL byte or not in UTF-8
//	500  limits returned another error or an invalid request
//	503  no decision and a policy fails closed, limiter.ErrMisconfigured, or the
//	     context's deadline is over
//
// 400, 500 and 503 are logged: see WithLogger. WithOnError replaces them, and 403. If the
// request's context was cancelled, the handler panics with http.ErrAbortHandler, and
// net/http aborts the response. If other middleware recovers from that panic, the
// response is an empty 503.
//
// New panics if l or limits is nil. The middleware is safe for concurrent use.
func New(l *limiter.Limiter, limits Limits, opts ...Option) func(http.Handler) http.Handler {
	require(l != nil, "New: the limiter is nil")
	require(limits != nil, "New: limits is nil")
	m := &middleware{limiter: l, limits: limits}
	for _, opt := range opts {
		opt(m)
	}
	require(m.succeededIf == nil, "New: WithSucceededIf is for NewAttempts")
	return func(next http.Handler) http.Handler {
		require(next != nil, "New: the next handler is nil")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	limiter     *limiter.Limiter
	limits      Limits
	keyless     Keyless
	preflights  bool // pass
	xRateLimit  bool
	onDeny      func(http.ResponseWriter, *http.Request, *limiter.DeniedError)
	onError     func(http.ResponseWriter, *http.Request, error)
	refundIf    func(status int) bool
	succeededIf func(status int) bool
	givenLogger *slog.Logger
	unstorable  throttle.Throttle // warnings
	undecided   throttle.Throttle
	unrefunded  throttle.Throttle
	unreported  throttle.Throttle
}

// Option configures New.
type Option func(*middleware)

// Keyless selects how New handles a request without a key.
type Keyless uint8

const (
	// Refuse answers 403 (Forbidden). It is the default.
	Refuse Keyless = iota
	// Pass lets the request pass and counts nothing.
	Pass
)

// WithNoKey sets how New handles an HTTP request for which limits returns ErrNoKey:
// Refuse or Pass. Default: Refuse. It panics for any other value.
func WithNoKey(k Keyless) Option {
	require(k <= Pass, "WithNoKey: must be Refuse or Pass")
	return func(m *middleware) { m.keyless = k }
}

// WithPassPreflight lets CORS preflights pass and counts nothing for them: OPTIONS with
// the fields Origin and Access-Control-Request-Method. Browsers send them before a request
// of another origin, without credentials. Any client can send as many as it likes, so set
// it only if the next handler answers them itself, as CORS middleware does. Default:
// preflights count as other requests.
//
// CORS middleware outside of New's also answers preflights before they count. It is needed
// there for browsers to show 429 to scripts: see docs/http.md.
func WithPassPreflight() Option { return func(m *middleware) { m.preflights = true } }

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

// WithXRateLimit also sets three older fields, which clients still read:
//
//	X-RateLimit-Limit: 10         // the Burst
//	X-RateLimit-Remaining: 0      // units, rounded down
//	X-RateLimit-Reset: 1780315212 // Unix seconds, rounded up
//
// They describe one policy: the one that denied, or else the one with the smallest
// share of its burst left. If several layers set them, the innermost counts. Reset is
// the time at which the t of SetHeader ends; it is left out if t is.
func WithXRateLimit() Option { return func(m *middleware) { m.xRateLimit = true } }

// WithOnDeny sets the function that answers denied requests; the fields of SetHeader are
// already set. denied.Result is that of the limit that denied for the longest time. Default:
// Deny, also if answer is nil.
func WithOnDeny(answer func(w http.ResponseWriter, r *http.Request, denied *limiter.DeniedError)) Option {
	return func(m *middleware) { m.onDeny = answer }
}

// WithOnError sets the function that answers if there is no decision, instead of New's
// 400, 403, 500 and 503. New does not log err then. Distinguish ErrNoKey and the errors of
// package limiter with errors.Is. Default: the responses of New, also if answer is nil.
func WithOnError(answer func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return func(m *middleware) { m.onError = answer }
}

// WithRefundIf returns a request's units if the response status matches is. To count
// only failed logins, which the handler answers with 401:
//
//	httplimit.WithRefundIf(func(status int) bool { return status != http.StatusUnauthorized })
//
// Do not count logins for the account alone: an attacker who uses that limit up denies the
// account's owner. Count the account and the client's address together.
//
// Requests count until the handler has returned, so concurrent requests cannot exceed
// the limit. The status is
//
//   - 200 if the handler writes nothing;
//   - 500 if the handler panics before it writes;
//   - never 1xx, except 101 (Switching Protocols);
//   - 499 if the request's context is cancelled before the answer begins: the client has
//     closed the request. 499 is never refunded, and is is not called. Otherwise a client
//     could close each request before its answer and never reach the limit.
//
// The refund runs after the handler has returned, even if the client goes away during the
// answer. It takes at most limiter.Config.Timeout for each policy; errors are logged. The
// response's fields do not include the refund.
//
// limiter.Limiter.Undo returns the units, and lifts a block of Policy.BlockFor that they led
// to. These units are not returned:
//
//   - units that leaked, or whose window ended, while the handler ran;
//   - units in a LeakyBucketQueue;
//   - units of an unlimited key (policies.Override), which were not counted;
//   - units of an earlier request with the same limiter.Request.IdempotencyKey.
//
// It panics if is is nil.
func WithRefundIf(is func(status int) bool) Option {
	require(is != nil, "WithRefundIf: the function is nil")
	return func(m *middleware) { m.refundIf = is }
}

// WithLogger sets the logger of errors that New answers with 400 or 503 (level warn) or 500
// (level error), and of failed refunds (level warn). Each kind of warning is logged at most
// once a minute; its since_last is the number of them since the last line, itself included.
// Of the text of an error, which may quote a client, the first 1,000 bytes are logged.
// Default: slog.Default(), also if l is nil.
func WithLogger(l *slog.Logger) Option { return func(m *middleware) { m.givenLogger = l } }

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.preflights && isPreflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	requests, err := m.limits(r)
	switch {
	case err != nil:
		m.unkeyed(w, r, next, err)
		return
	case len(requests) == 0:
		next.ServeHTTP(w, r)
		return
	}
	all, err := decide(r.Context(), m.limiter, requests)
	if err != nil {
		m.noDecision(w, r, err, slices.ContainsFunc(requests, func(r limiter.Request) bool { return !storable(r.Key, maxKey) }))
		return
	}
	SetHeader(w.Header(), all.PerRequest...)
	if m.xRateLimit {
		setXRateLimit(w.Header(), all)
	}
	switch {
	case all.Allowed:
		inner := r.WithContext(context.WithValue(r.Context(), decisionKey{}, &decision{requests, all}))
		defer func() { r.Pattern = inner.Pattern }() // for middleware outside that reads what a ServeMux matched
		if m.refundIf != nil {
			m.serveRefunding(w, inner, next, requests, all)
		} else {
			next.ServeHTTP(w, inner)
		}
	default:
		m.deny(w, r, all)
	}
}

// deny answers a denied request.
func (m *middleware) deny(w http.ResponseWriter, r *http.Request, all limiter.Results) {
	if m.onDeny == nil {
		Deny(w, all.Err())
		return
	}
	m.onDeny(w, r, &limiter.DeniedError{Result: all.PerRequest[all.DeniedBy], PerRequest: all.PerRequest})
}

// unkeyed serves a request whose limits or attempt could not be found.
func (m *middleware) unkeyed(w http.ResponseWriter, r *http.Request, next http.Handler, err error) {
	switch {
	case !errors.Is(err, ErrNoKey):
		m.fail(w, r, http.StatusInternalServerError, err)
	case m.keyless == Pass:
		next.ServeHTTP(w, r)
	default:
		m.fail(w, r, http.StatusForbidden, err)
	}
}

// noDecision answers a request without a decision. unstorable reports whether it has a key that
// cannot be stored.
func (m *middleware) noDecision(w http.ResponseWriter, r *http.Request, err error, unstorable bool) {
	status := http.StatusServiceUnavailable
	switch {
	case errors.Is(err, limiter.ErrInvalid) && unstorable:
		status = http.StatusBadRequest
	case errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported):
		status = http.StatusInternalServerError
	}
	m.fail(w, r, status, err)
}

// clientClosedRequest is nginx's status of a request whose client went away before the
// answer. A status that the handler writes after that reaches nobody: a reverse proxy
// writes 502 then.
const clientClosedRequest = 499

// serveRefunding serves a granted request and refunds it if its status matches.
func (m *middleware) serveRefunding(w http.ResponseWriter, r *http.Request, next http.Handler, requests []limiter.Request, all limiter.Results) {
	watch(w, r, next, func(status int, _ bool) {
		if status != clientClosedRequest && m.refundIf(status) {
			m.refund(context.WithoutCancel(r.Context()), requests, all)
		}
	})
}

// watch serves a request, and then calls done with the status of its response, which
// WithRefundIf describes, and whether that says how the request went: not if the handler
// panicked or hijacked the connection.
func watch(w http.ResponseWriter, r *http.Request, next http.Handler, done func(code int, sure bool)) {
	answered, panicked, hijacked := 0, true, false
	answers := func(code int) {
		if code == status.Hijacked {
			code, hijacked = http.StatusOK, true
		}
		if answered == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
			answered = code
			if errors.Is(r.Context().Err(), context.Canceled) {
				answered = clientClosedRequest
			}
		}
	}
	defer func() { // does not recover, so that a panic continues unchanged
		answers(http.StatusInternalServerError)
		done(answered, !panicked && !hijacked)
	}()
	next.ServeHTTP(status.Watch(w, answers), r)
	answers(http.StatusOK)
	panicked = false
}

// refund returns the units that the requests were granted.
func (m *middleware) refund(ctx context.Context, requests []limiter.Request, all limiter.Results) {
	for i, r := range all.PerRequest {
		p := requests[i].Policy
		if p.Algorithm == limiter.LeakyBucketQueue || r.Replayed || r.Shadowed || r.Source == limiter.SourceOverride || r.Source == limiter.SourceDegraded && p.OnError != limiter.FailLocal {
			continue
		}
		if _, err := m.limiter.Undo(ctx, p, requests[i].Key, r); err != nil {
			m.warn(ctx, &m.unrefunded, "httplimit: a refund failed", "policy", p.Name, "error", err)
		}
	}
}

// fail answers a request without a decision.
func (m *middleware) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		w.WriteHeader(http.StatusServiceUnavailable) // net/http drops it; middleware that recovers, such as gin, would answer 200 otherwise
		panic(http.ErrAbortHandler)
	case m.onError != nil:
		m.onError(w, r, err)
		return
	}
	detail := ""
	switch status {
	case http.StatusForbidden:
		detail = "The request has no key for the rate limit."
	case http.StatusBadRequest:
		detail = "The request's key for the rate limit is too long, has a NUL byte or is not UTF-8."
		m.warn(r.Context(), &m.unstorable, "httplimit: no decision", "error", logged(err))
	case http.StatusServiceUnavailable:
		detail = "The rate limit cannot be checked now."
		m.warn(r.Context(), &m.undecided, "httplimit: no decision", "error", logged(err))
	default:
		m.logger().ErrorContext(r.Context(), "httplimit: no decision", "error", logged(err))
	}
	fail(w, status, detail)
}

// logged returns err for the log. Its text may quote what a client sent, so it is shortened.
func logged(err error) any {
	const most = 1000
	text := err.Error()
	if len(text) <= most {
		return err
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(text))
}

// warn logs at most one of its kind a minute.
func (m *middleware) warn(ctx context.Context, kind *throttle.Throttle, msg string, args ...any) {
	if since, ok := kind.Next(time.Minute); ok {
		m.logger().WarnContext(ctx, msg, append([]any{"since_last", since}, args...)...)
	}
}

func (m *middleware) logger() *slog.Logger {
	if m.givenLogger == nil {
		return slog.Default()
	}
	return m.givenLogger
}
