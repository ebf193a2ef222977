package httplimit

import (
	"context"
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
	l, r := limiter.NewMemory(nil), request()
	p := limiter.Policy{Name: "granting", Algorithm: limiter.TokenBucket, Limit: 1e15, Period: time.Second}
	full := limiter.Policy{Name: "denying", Algorithm: limiter.TokenBucket, Limit: 1, Period: 1000 * time.Hour}
	if _, err := l.Allow(ctx, full, "192.0.2.1"); err != nil {
		b.Fatal(err)
	}
	serve := func(requests requestsFunc, opts ...Option) func() {
		h := New(l, requests, opts...)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		return func() { h.ServeHTTP(&discard{h: http.Header{}}, r) }
	}
	key := Address{}.Key
	one, denied := p.Request("192.0.2.1", 1), full.Request("192.0.2.1", 1)
	for name, run := range map[string]func(){
		"allowed/decision":   func() { _, _ = l.Do(ctx, one) },
		"allowed/middleware": serve(Each(key, p)),
		"refund/decision": func() {
			_, _ = l.Do(ctx, one)
			_, _ = l.Refund(ctx, one.Policy, one.Key, one.Cost)
		},
		"refund/middleware":          serve(Each(key, p), WithRefundIf(func(int) bool { return true })),
		"two limits deny/decision":   func() { _, _ = l.AllowAll(ctx, denied, one) },
		"two limits deny/middleware": serve(Each(key, full, p)),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				run()
			}
		})
	}
}
