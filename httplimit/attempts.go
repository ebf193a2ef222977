package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/pglimit/pglimit/limiter"
)

// Attempt has the arguments of limiter.Limiter.Attempt for an HTTP request.
type Attempt struct {
	Policy limiter.Policy // of the algorithm limiter.Attempts
	Key    string         // such as the account: one form for all spellings of its name
	// AttemptOptions has From, such as the result of Address.Key, and TTL. The TTL must be
	// longer than the handler takes.
	limiter.AttemptOptions
}

// NewAttempts returns middleware for HTTP requests that may fail, such as logins. Before the
// next handler runs, it begins the attempt that the function attempt returns for the HTTP
// request. If that is denied, the next handler does not run, and the response is that of New for
// a denied request, with Retry-After. Otherwise it reports the attempt afterwards, by the status
// of the response:
//
//	200 to 399  limiter.Limiter.Succeeded
//	all others  limiter.Limiter.Failed
//
// WithSucceededIf changes that. These always count as failed:
//
//   - a request whose client goes away before the response begins: otherwise a client could
//     send passwords and close its connections;
//   - a panic of the handler;
//   - a hijacked connection, whose status nobody sees. Let the handler report it.
//
// A status of 500 and more counts as failed too: otherwise a guess would be free where something
// breaks after it.
//
// The response to an attempt that passes has no RateLimit fields, which would show how other
// attempts of the key went. The function attempt returns ErrNoKey if the request has no key. It
// is called once for each HTTP request, must be safe for concurrent use, and must not change the
// request. Responses without a decision are those of New. All options of New work but
// WithRefundIf and WithXRateLimit.
//
// The report runs after the handler has returned. To record a login and report its success
// together, let the handler call limiter.Tx.Succeeded in its transaction, with the ticket of
// TicketFromContext. If that returns an error, roll back and answer with an error. A ticket
// counts once, so the middleware's report then changes nothing. If the middleware's report
// fails for another reason, that is logged, and the attempt counts as failed when its TTL ends.
//
// NewAttempts panics if l or attempt is nil. The middleware is safe for concurrent use.
func NewAttempts(l *limiter.Limiter, attempt func(*http.Request) (Attempt, error), opts ...Option) func(http.Handler) http.Handler {
	require(l != nil, "NewAttempts: the limiter is nil")
	require(attempt != nil, "NewAttempts: attempt is nil")
	m := &middleware{limiter: l}
	for _, opt := range opts {
		opt(m)
	}
	require(m.refundIf == nil && !m.xRateLimit, "NewAttempts: WithRefundIf and WithXRateLimit are for New")
	return func(next http.Handler) http.Handler {
		require(next != nil, "NewAttempts: the next handler is nil")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serveAttempt(w, r, next, attempt) })
	}
}

// WithSucceededIf makes succeeded report, by the status of a response, whether the attempt
// succeeded; otherwise it failed. Default: 200 to 399. Set it if the handler answers a wrong
// password with a redirect or with 200. The statuses are those of WithRefundIf. For 499, and
// after a panic or a hijack, succeeded is not called. The option is for NewAttempts.
// WithSucceededIf panics if succeeded is nil.
func WithSucceededIf(succeeded func(status int) bool) Option {
	require(succeeded != nil, "WithSucceededIf: the function is nil")
	return func(m *middleware) { m.succeededIf = succeeded }
}

type ticketKey struct{}

// TicketFromContext returns the ticket of the attempt that NewAttempts began for an HTTP
// request. ctx is the context of the request that the next handler gets. ok is false if ctx has
// no ticket. Keep the ticket's ID from the client.
func TicketFromContext(ctx context.Context) (t limiter.Ticket, ok bool) {
	t, ok = ctx.Value(ticketKey{}).(limiter.Ticket)
	return t, ok
}

// serveAttempt serves a request if its attempt is allowed, and reports the attempt.
func (m *middleware) serveAttempt(w http.ResponseWriter, r *http.Request, next http.Handler, attempt func(*http.Request) (Attempt, error)) {
	if m.preflights && isPreflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	a, err := attempt(r)
	if err != nil {
		m.unkeyed(w, r, next, err)
		return
	}
	ticket, err := m.limiter.Attempt(r.Context(), a.Policy, a.Key, a.AttemptOptions)
	switch {
	case err != nil:
		m.noDecision(w, r, err, !storable(a.Key, maxKey) || !storable(a.From, maxKey))
		return
	case !ticket.Result.Allowed:
		SetHeader(w.Header(), ticket.Result)
		m.deny(w, r, limiter.Results{PerRequest: []limiter.Result{ticket.Result}})
		return
	}
	inner := r.WithContext(context.WithValue(r.Context(), ticketKey{}, ticket))
	defer func() { r.Pattern = inner.Pattern }()
	watch(w, inner, next, func(code int, sure bool) {
		m.report(context.WithoutCancel(r.Context()), ticket, sure && code != clientClosedRequest && m.succeeded(code))
	})
}

func (m *middleware) succeeded(status int) bool {
	if m.succeededIf != nil {
		return m.succeededIf(status)
	}
	return status >= 200 && status < 400
}

// report reports an attempt. An ErrNoTicket is no error here: the handler has reported the
// attempt, or it has ended and counted as failed.
func (m *middleware) report(ctx context.Context, t limiter.Ticket, succeeded bool) {
	var err error
	if succeeded {
		err = m.limiter.Succeeded(ctx, t.ID)
	} else {
		_, err = m.limiter.Failed(ctx, t.ID)
	}
	if err != nil && !errors.Is(err, limiter.ErrNoTicket) {
		m.warn(ctx, &m.unreported, "httplimit: an attempt was not reported and will count as failed", "policy", t.Result.Policy.Name, "error", err)
	}
}
