package load

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
)

// GRPC is clients that send a request until their server ends.
type GRPC struct {
	answered atomic.Int64
	running  sync.WaitGroup
}

// StartGRPC starts clients of Envoy's rate limit service at an address, on a few connections. Each
// goes on until the server accepts no connection. A request that was sent and has no answer, or
// one that denies, fails the test.
func StartGRPC(t *testing.T, address string, request *pb.RateLimitRequest) *GRPC {
	t.Helper()
	g := &GRPC{}
	for range 4 {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(noteSent{}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		service := pb.NewRateLimitServiceClient(conn)
		for range 4 {
			g.running.Go(func() {
				for {
					sent := new(atomic.Bool)
					r, err := service.ShouldRateLimit(context.WithValue(t.Context(), noteSent{}, sent), request)
					switch {
					case err == nil && r.GetOverallCode() == pb.RateLimitResponse_OK:
						g.answered.Add(1)
						continue
					case err == nil:
						t.Errorf("after %d answers: %v", g.answered.Load(), r)
					case sent.Load():
						t.Errorf("after %d answers a request was sent: %v", g.answered.Load(), err)
					}
					return
				}
			})
		}
	}
	return g
}

// Answered returns the number of answers until now.
func (g *GRPC) Answered() int { return int(g.answered.Load()) }

// Wait waits for the clients' end, and returns the number of answers.
func (g *GRPC) Wait() int {
	g.running.Wait()
	return g.Answered()
}

// noteSent sets the value of a call's context once its request is written.
type noteSent struct{}

func (noteSent) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (noteSent) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (noteSent) HandleConn(context.Context, stats.ConnStats)                       {}

func (noteSent) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if sent, ok := ctx.Value(noteSent{}).(*atomic.Bool); ok {
		if _, is := s.(*stats.OutHeader); is {
			sent.Store(true)
		}
	}
}
