package httplimit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// closing is a body that records whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// base answers without a network.
type base struct{ sent, idle int }

func (b *base) RoundTrip(r *http.Request) (*http.Response, error) {
	b.sent++
	if r.Body != nil {
		r.Body.Close()
	}
	return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
}

func (b *base) CloseIdleConnections() { b.idle++ }

func TestTransport(t *testing.T) {
	l := limiter.NewMemory(nil)
	p := limiter.Policy{Name: "api", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	never := errors.New("never")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, c := range []struct {
		name     string
		requests Limits
		ctx      context.Context
		sent     bool
		is       error
		denied   string
	}{
		{"granted", fixed(p.Request("k", 2)), nil, true, nil, ""},
		{"denied", fixed(p.Request("k", 1)), nil, false, nil, "pglimit: denied by api (limit): retry after "},
		{"several denied", fixed(slow.Request("k", 1), p.Request("k", 1)), nil, false, nil, "pglimit: denied by api (limit): retry after "},
		{"above the burst", fixed(p.Request("k", 3)), nil, false, nil, "pglimit: denied by api: the cost is more than the limit ever allows"},
		{"no requests", fixed(), nil, true, nil, ""},
		{"no key", failing(ErrNoKey), nil, false, ErrNoKey, ""},
		{"requests fails", failing(never), nil, false, never, ""},
		{"invalid", fixed(p.Request("k", 0)), nil, false, limiter.ErrInvalid, ""},
		{"cancelled", fixed(p.Request("l", 1)), cancelled, false, context.Canceled, ""},
		{"first in a queue", fixed(slow.Request("k", 1)), soon, true, nil, ""},
		{"a turn too late", fixed(slow.Request("k", 1)), soon, false, nil, "pglimit: denied by slow (limit): retry after "},
	} {
		b := &base{}
		body := &closing{Reader: strings.NewReader("body")}
		r := must.OK(http.NewRequest("POST", "http://example.com", body))(t)
		if c.ctx != nil {
			r = r.WithContext(c.ctx)
		}
		res, err := (&http.Client{Transport: Transport(l, c.requests, b)}).Do(r)
		if (err == nil) != c.sent || (res != nil) != c.sent || (b.sent == 1) != c.sent || !body.closed {
			t.Errorf("%s: got %v, %v; sent %d, body closed %v", c.name, res, err, b.sent, body.closed)
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.is)
		}
		var denied *limiter.DeniedError
		if errors.As(err, &denied) != (c.denied != "") || c.denied != "" && (!strings.Contains(err.Error(), c.denied) || denied.Result.RetryAfter <= 0) {
			t.Errorf("%s: got %v, %+v", c.name, err, denied)
		}
	}
	if got := level(t, l, slow, "k"); got > 1 {
		t.Errorf("a request that was not sent has a place: level %v, want at most 1", got)
	}
	r := must.OK(http.NewRequest("GET", "http://example.com", nil))(t)
	if _, err := Transport(l, failing(never), nil).RoundTrip(r); !errors.Is(err, never) {
		t.Errorf("without a body: %v", err)
	}

	server := httptest.NewServer(&answering{status: 204})
	defer server.Close()
	if res, err := (&http.Client{Transport: Transport(l, fixed(), nil)}).Get(server.URL); err != nil || res.StatusCode != 204 {
		t.Errorf("over http.DefaultTransport: %v, %v", res, err)
	}

	b := &base{}
	(&http.Client{Transport: Transport(l, fixed(), b)}).CloseIdleConnections()
	if b.idle != 1 {
		t.Error("CloseIdleConnections does not reach the base transport")
	}
	(&http.Client{Transport: Transport(l, fixed(), struct{ http.RoundTripper }{b})}).CloseIdleConnections()
}
