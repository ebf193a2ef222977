package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/limiter"
)

// The times that a client's connection needs between two requests, on average: of the
// others, and of the attacker, who sends 10,000 requests a second. Far more would take the
// processors from all, whatever the limiter does.
const (
	pause         = 20 * time.Millisecond
	attackerPause = 200 * time.Millisecond
)

// BenchmarkFlood: one client with 2,000 connections does not take the limiter from the
// others. It reports their p99 in the flood, and for each p99 without one, and the part of
// their requests that was answered.
//
//	go test ./integration/share -run - -bench Flood
func BenchmarkFlood(b *testing.B) {
	own := limiter.Policy{Name: "client", Algorithm: limiter.GCRA, Limit: 100, Period: time.Second, Burst: 100}
	all := limiter.Policy{Name: "everybody", Algorithm: limiter.TokenBucket, Limit: 20_000, Period: time.Second}
	queue := limiter.Policy{Name: "line", Algorithm: limiter.LeakyBucketQueue, Limit: 100, Period: time.Second, Burst: 20}
	token := limiter.Policy{Name: "token", Algorithm: limiter.GCRA, Limit: 100, Period: time.Second}
	client := func(r *http.Request) string { return r.Header.Get("Client") }
	for _, c := range []struct {
		name     string
		requests func(*http.Request) []limiter.Request
		leaves   time.Duration // how soon the client leaves; 0: not
	}{
		{"single", func(r *http.Request) []limiter.Request { return []limiter.Request{own.Request(client(r), 1)} }, 0},
		{"layered", func(r *http.Request) []limiter.Request {
			return []limiter.Request{own.Request(client(r), 1), all.Request("all", 1)}
		}, 0},
		{"queue", func(r *http.Request) []limiter.Request { return []limiter.Request{queue.Request(client(r), 1)} }, 0},
		{"queue, cancelled", func(r *http.Request) []limiter.Request { return []limiter.Request{queue.Request(client(r), 1)} }, 3 * time.Millisecond},
		{"layered, random tokens", func(r *http.Request) []limiter.Request {
			return []limiter.Request{own.Request(client(r), 1), token.Request(r.Header.Get("Token"), 1)}
		}, 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLimiter(b, testworld.NewPool(b))
			handler := httplimit.New(l, func(r *http.Request) ([]limiter.Request, error) { return c.requests(r), nil },
				httplimit.WithLogger(slog.New(slog.DiscardHandler)))(
				http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
			send := func(ctx context.Context, client, token string) (limiter.Result, error) {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
				r.Header.Set("Client", client)
				r.Header.Set("Token", token)
				w := httptest.NewRecorder()
				func() {
					defer func() { _ = recover() }() // the client went away
					handler.ServeHTTP(w, r)
				}()
				if w.Code != http.StatusOK && w.Code != http.StatusTooManyRequests {
					return limiter.Result{}, errors.New(http.StatusText(w.Code))
				}
				return limiter.Result{Allowed: w.Code == http.StatusOK, Granted: 1}, nil
			}
			others := func(ctx context.Context, i int) (limiter.Result, error) {
				return send(ctx, fmt.Sprint("client-", i), fmt.Sprint("token-", i))
			}
			var quiet, busy score
			for b.Loop() {
				quiet.merge(during(800*time.Millisecond, 50, pause, others))
				ctx, stop := context.WithCancel(context.Background())
				flood := make(chan *score)
				go func() {
					flood <- load(ctx, 2000, attackerPause, func(ctx context.Context, _ int) (limiter.Result, error) {
						if c.leaves > 0 {
							var cancel context.CancelFunc
							ctx, cancel = context.WithCancel(ctx)
							defer cancel()
							defer time.AfterFunc(c.leaves, cancel).Stop()
						}
						return send(ctx, "attacker", fmt.Sprint("random-", rand.Uint64()))
					})
				}()
				busy.merge(during(1300*time.Millisecond, 50, pause, others))
				stop()
				<-flood
			}
			b.ReportMetric(busy.p99().Seconds()*1e3, "ms-p99")
			b.ReportMetric(float64(busy.p99())/float64(quiet.p99()), "of-quiet")
			b.ReportMetric(float64(len(busy.took))/float64(len(busy.took)+busy.failed()), "answered")
			b.ReportMetric(0, "ns/op")
		})
	}
}
