package share

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestShortDeadlinesCostNoConnection: callers that leave before their answer cost no
// connection, and the others get their answers meanwhile.
func TestShortDeadlinesCostNoConnection(t *testing.T) {
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.FourConnections)
	closed := func() int64 { s := pool.Stat(); return s.NewConnsCount() - int64(s.TotalConns()) }
	for _, verb := range verbNames {
		t.Run(verb, func(t *testing.T) {
			l := testworld.NewLimiter(t, pool, nil)
			defer func() { must.Succeed(t, l.Close()) }()
			call := verbs(l, unlimited)[verb]
			each := func(ctx context.Context, i int) (limiter.Result, error) { return call(ctx, fmt.Sprint("key-", i)) }
			first := answers(8, 5, each).took
			slices.Sort(first)
			usual := first[len(first)/2] // the slowest may have met a busy machine
			before := closed()
			ctx, stop := context.WithCancel(context.Background())
			someoneLeft, leave := context.WithCancel(ctx)
			left := make(chan *score)
			go func() {
				left <- load(ctx, 32, 0, func(ctx context.Context, i int) (limiter.Result, error) {
					ctx, cancel := context.WithTimeout(ctx, rand.N(usual))
					defer cancel()
					res, err := each(ctx, i)
					if err != nil {
						leave()
					}
					return res, err
				})
			}()
			if s := answers(4, 20, func(ctx context.Context, i int) (limiter.Result, error) { return each(ctx, 100+i) }); s.failed() > 0 {
				t.Errorf("beside callers that leave: %v", s)
			}
			<-someoneLeft.Done() // a busy machine may have answered all others first
			stop()
			<-left
			if n := closed() - before; n > 0 {
				t.Errorf("%d connections were lost", n)
			}
		})
	}
}

// BenchmarkShortDeadlines: goodput is the answers to callers whose deadline is twice the
// time in which 99 % of them get theirs, for each answer to callers without a deadline.
//
//	go test ./integration/share -run - -bench ShortDeadlines
func BenchmarkShortDeadlines(b *testing.B) {
	pool := testworld.Connect(b, testworld.NewDatabase(b), testworld.FourConnections)
	for _, verb := range verbNames {
		b.Run(verb, func(b *testing.B) {
			call := verbs(newLimiter(b, pool), unlimited)[verb]
			each := func(ctx context.Context, i int) (limiter.Result, error) { return call(ctx, fmt.Sprint("key-", i)) }
			during(50*time.Millisecond, 32, 0, each)
			without, with := 0, 0
			for b.Loop() {
				quiet := during(150*time.Millisecond, 32, 0, each)
				without += len(quiet.took)
				with += len(during(150*time.Millisecond, 32, 0, func(ctx context.Context, i int) (limiter.Result, error) {
					ctx, cancel := context.WithTimeout(ctx, 2*quiet.p99())
					defer cancel()
					return each(ctx, i)
				}).took)
			}
			b.ReportMetric(float64(with)/float64(without), "goodput")
			b.ReportMetric(0, "ns/op")
		})
	}
}
