package httplimit

import (
	"net/http"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// Transport returns an http.RoundTripper that limits outgoing HTTP requests by l. If l
// uses a database, the limit covers all processes together. Transport sends a request by
// base only if l grants all that limits returns for it, as in New. If base is nil, it
// uses http.DefaultTransport.
//
// With a LeakyBucketQueue each HTTP request waits for its turn, within its context and
// http.Client.Timeout. If the turn comes too late, or another limit denies the request,
// RoundTrip does not send it and returns a *limiter.DeniedError, for errors.As: its
// Result.RetryAfter is the time until a retry can succeed. RoundTrip also returns the
// errors of limits, such as ErrNoKey, and of l, without sending.
//
// Each redirect that an http.Client follows is a request. Transport panics if l or
// limits is nil. The RoundTripper is safe for concurrent use.
func Transport(l *limiter.Limiter, limits Limits, base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	require(l != nil, "Transport: the limiter is nil")
	require(limits != nil, "Transport: limits is nil")
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{limiter: l, limits: limits, base: base}
	for _, opt := range opts {
		opt(t)
	}
	return t
}

// TransportOption configures Transport.
type TransportOption func(*transport)

type transport struct {
	limiter *limiter.Limiter
	limits  Limits
	base    http.RoundTripper
	pauses  []func(*http.Response) time.Duration // of WithPause; without it none
	longest time.Duration
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	requests, err := t.admit(r)
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	res, err := t.base.RoundTrip(r)
	if err == nil && len(requests) > 0 {
		t.pause(r.Context(), res, requests[0])
	}
	return res, err
}

func (t *transport) admit(r *http.Request) ([]limiter.Request, error) {
	requests, err := t.limits(r)
	if err != nil || len(requests) == 0 {
		return nil, err
	}
	all, err := decide(r.Context(), t.limiter, requests)
	if err == nil {
		err = all.Err()
	}
	return requests, err
}

// CloseIdleConnections closes base's idle connections, for
// http.Client.CloseIdleConnections.
func (t *transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
