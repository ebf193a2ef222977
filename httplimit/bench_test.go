package httplimit

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkNew compares the middleware with its decisions alone, on a limiter in memory:
// the difference is the middleware's cost.
func BenchmarkNew(b *testing.B) {
	ctx := context.Background()
	granting := limiter.Policy{Name: "granting", Algorithm: limiter.TokenBucket, Limit: 1e15, Period: time.Second}
	denying := limiter.Policy{Name: "denying", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour}
	other := granting
	other.Name = "other"
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	r := request()
	serve := func(h http.Handler) func(*limiter.Limiter) {
		return func(*limiter.Limiter) { h.ServeHTTP(&discard{h: http.Header{}}, r) }
	}
	for _, c := range []struct {
		name string
		p    limiter.Policy
	}{{"allowed", granting}, {"denied", denying}} {
		l := limiter.NewMemory(nil)
		if _, err := l.Allow(ctx, c.p, "192.0.2.1"); err != nil {
			b.Fatal(err)
		}
		one, two := c.p.Request("192.0.2.1", 1), other.Request("all", 1)
		key := Address{}.Key
		each := Each(key, c.p)
		for _, run := range []struct {
			name string
			f    func(*limiter.Limiter)
		}{
			{"one request/decision", func(l *limiter.Limiter) { _, _ = l.Do(ctx, one) }},
			{"one request/middleware", serve(New(l, each)(next))},
			{"one request/XRateLimit", serve(New(l, each, WithXRateLimit())(next))},
			{"two requests/decision", func(l *limiter.Limiter) { _, _ = l.AllowAll(ctx, one, two) }},
			{"two requests/middleware", serve(New(l, Each(key, c.p, other))(next))},
			{"refund/decision", func(l *limiter.Limiter) {
				if r, _ := l.Do(ctx, one); r.Allowed {
					_, _ = l.Refund(ctx, one.Policy, one.Key, one.Cost)
				}
			}},
			{"refund/middleware", serve(New(l, each, WithRefundIf(func(int) bool { return true }))(next))},
		} {
			b.Run(fmt.Sprintf("%s/%s", c.name, run.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					run.f(l)
				}
			})
		}
	}
}

// BenchmarkAddress measures finding the client. BenchmarkNew includes the first case.
func BenchmarkAddress(b *testing.B) {
	for name, c := range map[string]struct {
		a Address
		r *http.Request
	}{
		"connection":  {Address{}, from("192.0.2.1:4711")},
		"hop":         {Address{Hops: 1}, from("10.0.0.1:4711", "X-Forwarded-For: 198.51.100.1, 2001:db8::1")},
		"RFC 7239":    {Address{Proxies: prefixes("10.0.0.0/8"), Header: "Forwarded"}, from("10.0.0.1:4711", `Forwarded: for="[2001:db8::1]:80";proto=https, for=10.0.0.2`)},
		"1 MB header": {Address{Hops: 1}, &http.Request{RemoteAddr: "10.0.0.1:4711", Header: http.Header{"X-Forwarded-For": {string(make([]byte, 1<<20))}}}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.a.Key(c.r)
			}
		})
	}
}
