package httplimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/pglimit/pglimit/httplimit/internal/status"
	"github.com/pglimit/pglimit/limiter"
)

// New returns middleware that asks l before each request and lets it pass if all
// asks are granted; else the next handler is not called. asks tells what a request
// asks for, so that plans, costs and layers are all in one function: an ask is a
// policy, a key and a cost, and several are decided all or nothing. Each makes one
// of a Key and policies. Without asks a request passes. asks is called once for each
// request, from many goroutines.
//
//	limit := httplimit.New(l, httplimit.Each(httplimit.Address{}.Key, perClient))
//	http.ListenAndServe(":8080", limit(mux))
//
// A LeakyBucketQueue lets a request wait for its turn, within the request's
// context: one whose turn comes after the context's deadline is denied at once, and
// what one that is cancelled was granted goes back, as of limiter.Limiter.DoWait and
// WaitAll.
//
// A request that passes, and one that is denied, has the fields of SetHeader in its
// answer. One that does not pass is answered, with application/problem+json:
//
//	429  denied: by Deny, or by OnDeny
//	403  there is no key (ErrNoKey), unless NoKey says Pass
//	500  asks returned another error, or what it asks is not valid
//	503  there is no decision and a policy fails closed, or the request's deadline is over
//
// The errors of the last two are logged. OnError answers the last three instead. A
// request whose context was cancelled is not answered: the handler panics with
// http.ErrAbortHandler, as net/http has it. Where other middleware recovers from
// that, the answer is an empty 503.
//
// New panics if l or asks is nil. What it returns is safe for concurrent use.
func New(l *limiter.Limiter, requests func(*http.Request) ([]limiter.Request, error), opts ...Option) func(http.Handler) http.Handler {
	require(l != nil, "New: the limiter is nil")
	require(requests != nil, "New: requests is nil")
	m := &middleware{limiter: l, requests: requests}
	for _, opt := range opts {
		opt(m)
	}
	return func(next http.Handler) http.Handler {
		require(next != nil, "New: the next handler is nil")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

type middleware struct {
	limiter     *limiter.Limiter
	requests    func(*http.Request) ([]limiter.Request, error)
	keyless     Keyless
	xRateLimit  bool
	onDeny      func(http.ResponseWriter, *http.Request, []limiter.Request, limiter.Results)
	onError     func(http.ResponseWriter, *http.Request, error)
	refundIf    func(status int) bool
	givenLogger *slog.Logger
}

// Option changes what New makes.
type Option func(*middleware)

// Keyless is what becomes of a request without a key.
type Keyless uint8

const (
	// Refuse answers it with 403 (Forbidden); it is the default.
	Refuse Keyless = iota
	// Pass lets it pass, and counts nothing.
	Pass
)

// NoKey says what becomes of a request for which asks returns ErrNoKey: Refuse or
// Pass. It panics for any other value.
func WithNoKey(k Keyless) Option {
	require(k <= Pass, "NoKey: must be Refuse or Pass")
	return func(m *middleware) { m.keyless = k }
}

// XRateLimit sets the three fields too that many clients knew before the draft:
//
//	X-RateLimit-Limit: 10         // the Burst
//	X-RateLimit-Remaining: 0
//	X-RateLimit-Reset: 1780315212 // Unix seconds, rounded up
//
// They tell of one ask: the one that denied, else the one with the smallest share
// of its burst left; of layers, of the innermost that sets them. Units are rounded
// down. Reset is when t of SetHeader is over, and left out where that is.
func WithXRateLimit() Option { return func(m *middleware) { m.xRateLimit = true } }

// OnDeny answers denied requests instead of Deny; the fields are set already. all is
// the answer to asks; all.Each[all.Binding] denied the longest. nil is Deny.
func WithOnDeny(answer func(w http.ResponseWriter, r *http.Request, requests []limiter.Request, all limiter.Results)) Option {
	return func(m *middleware) { m.onDeny = answer }
}

// OnError answers where there is no decision, instead of New's 403, 503 and 500, and
// gets the error, which is then logged nowhere else: tell ErrNoKey and those of the
// package limiter apart with errors.Is. nil is New's answers.
func WithOnError(answer func(w http.ResponseWriter, r *http.Request, err error)) Option {
	return func(m *middleware) { m.onError = answer }
}

// RefundIf gives back what a request was granted if the status of its answer is
// one that counts for nothing. To count failed logins alone, where the handler
// answers those with 401:
//
//	httplimit.RefundIf(func(status int) bool { return status != http.StatusUnauthorized })
//
// Requests count until they are answered, so that many at once do not get past the
// limit. A handler that writes nothing answers 200, one that panics before it has
// written 500, and 1xx are not the answer, but for 101 (Switching Protocols). The
// refund comes when the handler has returned, also if the client is gone, and takes
// limiter.Config.Timeout at most for each ask; an error is logged. The fields of the
// answer are as of before.
//
// It is limiter.Undo that gives back, so nothing passes twice: what has leaked while
// the handler ran is not given back, nor is anything of a window that has ended. What
// waits in a LeakyBucketQueue is not given back, nor what was answered by an earlier
// answer to the same limiter.Request.IdempotencyKey.
func WithRefundIf(is func(status int) bool) Option {
	require(is != nil, "RefundIf: the function is nil")
	return func(m *middleware) { m.refundIf = is }
}

// Logger gets the errors that New answers with 503, as warnings, and with 500, and
// refunds that fail. nil, the default, is slog.Default().
func WithLogger(l *slog.Logger) Option { return func(m *middleware) { m.givenLogger = l } }

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	requests, err := m.requests(r)
	switch {
	case err != nil && errors.Is(err, ErrNoKey) && m.keyless == Pass, err == nil && len(requests) == 0:
		next.ServeHTTP(w, r)
		return
	case err != nil:
		status := http.StatusInternalServerError
		if errors.Is(err, ErrNoKey) {
			status = http.StatusForbidden
		}
		m.fail(w, r, status, err)
		return
	}
	all, err := decide(r.Context(), m.limiter, requests)
	if err != nil {
		status := http.StatusServiceUnavailable
		if errors.Is(err, limiter.ErrInvalid) || errors.Is(err, limiter.ErrUnsupported) {
			status = http.StatusInternalServerError
		}
		m.fail(w, r, status, err)
		return
	}
	SetHeader(w.Header(), requests, all)
	if m.xRateLimit {
		setXRateLimit(w.Header(), all)
	}
	switch {
	case all.Allowed && m.refundIf != nil:
		m.serveRefunding(w, r, next, requests, all)
	case all.Allowed:
		next.ServeHTTP(w, r)
	case m.onDeny != nil:
		m.onDeny(w, r, requests, all)
	default:
		Deny(w, requests, all)
	}
}

// serveRefunding serves a request whose asks were granted.
func (m *middleware) serveRefunding(w http.ResponseWriter, r *http.Request, next http.Handler, requests []limiter.Request, all limiter.Results) {
	answered := 0
	answers := func(code int) {
		if answered == 0 && (code >= 200 || code == http.StatusSwitchingProtocols) {
			answered = code
		}
	}
	defer func() { // without recover: a panic goes on as it is
		answers(http.StatusInternalServerError)
		if m.refundIf(answered) {
			m.refund(context.WithoutCancel(r.Context()), requests, all)
		}
	}()
	next.ServeHTTP(status.Watch(w, answers), r)
	answers(http.StatusOK)
}

// refund gives back what the asks were granted.
func (m *middleware) refund(ctx context.Context, requests []limiter.Request, all limiter.Results) {
	for i, r := range all.PerRequest {
		p := requests[i].Policy
		if p.Algorithm == limiter.LeakyBucketQueue || r.Replayed || r.Source == limiter.SourceDegraded {
			continue
		}
		if _, err := m.limiter.Undo(ctx, p, requests[i].Key, r); err != nil {
			m.logger().WarnContext(ctx, "httplimit: a refund failed", "policy", p.Name, "error", err)
		}
	}
}

// fail answers where there is no decision.
func (m *middleware) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	switch {
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		w.WriteHeader(http.StatusServiceUnavailable) // net/http drops it; who recovers, as gin does, would else answer 200
		panic(http.ErrAbortHandler)
	case m.onError != nil:
		m.onError(w, r, err)
		return
	}
	detail := ""
	switch status {
	case http.StatusForbidden:
		detail = "The request does not tell whom to count it for."
	case http.StatusServiceUnavailable:
		detail = "It cannot be told now whether the request is within its limits."
		m.logger().WarnContext(r.Context(), "httplimit: no decision", "error", err)
	default:
		m.logger().ErrorContext(r.Context(), "httplimit: no decision", "error", err)
	}
	fail(w, status, detail)
}

func (m *middleware) logger() *slog.Logger {
	if m.givenLogger == nil {
		return slog.Default()
	}
	return m.givenLogger
}
