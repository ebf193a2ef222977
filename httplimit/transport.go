package httplimit

import (
	"fmt"
	"net/http"

	"github.com/pglimit/pglimit/limiter"
)

// Transport returns an http.RoundTripper that asks l before each request that it
// sends by base, so that calls to others keep to their limits: those of all
// processes together, where l is over a database. nil is http.DefaultTransport.
// asks is as for New.
//
// A LeakyBucketQueue spaces requests out: each waits for its turn, within its
// context, http.Client.Timeout included. If its turn comes too late, or any other
// limit denies it, the request is not sent, and the error is a
// *limiter.DeniedError for errors.As, whose RetryAfter tells when to come again. An
// error of asks, ErrNoKey included, or of l is returned, and the request not sent.
//
// Each redirect that an http.Client follows is a request. Transport panics if l or
// asks is nil. What it returns is safe for concurrent use.
func Transport(l *limiter.Limiter, requests func(*http.Request) ([]limiter.Request, error), base http.RoundTripper) http.RoundTripper {
	require(l != nil, "Transport: the limiter is nil")
	require(requests != nil, "Transport: requests is nil")
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{l, requests, base}
}

type transport struct {
	limiter  *limiter.Limiter
	requests func(*http.Request) ([]limiter.Request, error)
	base     http.RoundTripper
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.admit(r); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as a RoundTripper must
		}
		return nil, err
	}
	return t.base.RoundTrip(r)
}

func (t *transport) admit(r *http.Request) error {
	requests, err := t.requests(r)
	if err != nil || len(requests) == 0 {
		return err
	}
	all, err := decide(r.Context(), t.limiter, requests)
	if err == nil && !all.Allowed {
		err = fmt.Errorf("httplimit: %s: %w", requests[all.DeniedBy].Policy.Name, &limiter.DeniedError{Result: all.PerRequest[all.DeniedBy]})
	}
	return err
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (t *transport) CloseIdleConnections() {
	if base, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
