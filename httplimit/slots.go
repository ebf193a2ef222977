package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/pglimit/pglimit/limiter"
)

// NewSlots returns middleware that limits the HTTP requests served at a time: each holds the
// slot that slot returns for it, of a policy of the algorithm limiter.Concurrency, until the
// handler returns. So a stream or a long poll counts for as long as it lasts. If the handler
// hijacks its connection, that counts until the handler returns, and not for what goes on later.
//
//	perClient := limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 10, Period: 30 * time.Second}
//	mux := httplimit.NewSlots(l, func(r *http.Request) (limiter.Request, error) {
//		return perClient.Request(tenantOf(r), 1), nil
//	})(next)
//
// The slot is renewed while the handler runs, as limiter.Limiter.Keep does, so the Period may be
// short: the slots of a process that died are held for that long. If a slot is lost, because the
// database is away for that long or by a Reset, the context of the HTTP request ends.
//
// A denied request gets the response of New, with Retry-After: the time until a slot ends that is
// not renewed. A response that passes has no RateLimit fields. The function slot returns ErrNoKey
// if the request has no key. It is called once for each HTTP request, must be safe for concurrent
// use, and must not change the request. Responses without a decision, and the options but
// WithRefundIf, WithSucceededIf and WithXRateLimit, are those of New.
//
// NewSlots panics if l or slot is nil. The middleware is safe for concurrent use.
func NewSlots(l *limiter.Limiter, slot func(*http.Request) (limiter.Request, error), opts ...Option) func(http.Handler) http.Handler {
	require(l != nil, "NewSlots: the limiter is nil")
	require(slot != nil, "NewSlots: slot is nil")
	m := &middleware{limiter: l}
	for _, opt := range opts {
		opt(m)
	}
	require(m.refundIf == nil && m.succeededIf == nil && !m.xRateLimit, "NewSlots: WithRefundIf, WithSucceededIf and WithXRateLimit are for others")
	return func(next http.Handler) http.Handler {
		require(next != nil, "NewSlots: the next handler is nil")
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serveSlot(w, r, next, slot) })
	}
}

// serveSlot serves a request while it holds its slot.
func (m *middleware) serveSlot(w http.ResponseWriter, r *http.Request, next http.Handler, of func(*http.Request) (limiter.Request, error)) {
	if m.preflights && isPreflight(r) {
		next.ServeHTTP(w, r)
		return
	}
	in, err := of(r)
	if err != nil {
		m.unkeyed(w, r, next, err)
		return
	}
	slot, err := m.limiter.DoAcquire(r.Context(), in, 0)
	switch {
	case err != nil:
		m.noDecision(w, r, err, !storable(in.Key, maxKey))
		return
	case !slot.Result.Allowed:
		SetHeader(w.Header(), slot.Result)
		m.deny(w, r, limiter.Results{PerRequest: []limiter.Result{slot.Result}})
		return
	}
	err = m.limiter.Keep(r.Context(), slot, func(ctx context.Context) error {
		inner := r.WithContext(ctx)
		defer func() { r.Pattern = inner.Pattern }()
		next.ServeHTTP(w, inner)
		return nil
	})
	if errors.Is(err, limiter.ErrNoSlot) {
		m.warn(context.WithoutCancel(r.Context()), &m.unreported, "httplimit: a slot was lost while its request was served", "policy", slot.Result.Policy.Name, "error", err)
	}
}
