package grpclimit_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/pglimit/pglimit/grpclimit"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

const (
	unaryMethod = "/grpc.testing.TestService/UnaryCall"
	bidiMethod  = "/grpc.testing.TestService/FullDuplexCall"
)

var (
	hourly   = limiter.Policy{Name: "calls", Algorithm: limiter.FixedWindow, Limit: 2, Period: time.Hour}
	minutely = limiter.Policy{Name: "minutely", Algorithm: limiter.FixedWindow, Limit: 1, Period: time.Minute}
	wide     = limiter.Policy{Name: "wide", Algorithm: limiter.FixedWindow, Limit: 5, Period: time.Hour}
	// a turn in lane comes every hour: the second is too late for a call with a minute's deadline
	lane = limiter.Policy{Name: "lane", Algorithm: limiter.LeakyBucketQueue, Limit: 1, Period: time.Hour, Burst: 2}
)

// memory returns a limiter whose clock stands still.
func memory() *limiter.Limiter {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	return limiter.NewMemory(&limiter.Config{Now: func() time.Time { return at }})
}

func fixed(requests ...limiter.Request) httplimit.Limits {
	return func(*http.Request) ([]limiter.Request, error) { return requests, nil }
}

func failing(err error) httplimit.Limits {
	return func(*http.Request) ([]limiter.Request, error) { return nil, err }
}

// service counts what reaches it. Its streams answer each message.
type service struct {
	pb.UnimplementedTestServiceServer
	calls, opened, messages atomic.Int64
	during                  func(context.Context) error // in a unary call, if set
}

func (s *service) UnaryCall(ctx context.Context, _ *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	s.calls.Add(1)
	if s.during != nil {
		return &pb.SimpleResponse{}, s.during(ctx)
	}
	return &pb.SimpleResponse{}, nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse]) error {
	s.opened.Add(1)
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		s.messages.Add(1)
		if err := stream.Send(&pb.StreamingOutputCallResponse{}); err != nil {
			return err
		}
	}
}

// serve serves s behind the interceptors, until the test ends, and returns a client.
func serve(t testing.TB, s *service, l *limiter.Limiter, limits httplimit.Limits, opts []grpclimit.Option, dial ...grpc.DialOption) pb.TestServiceClient {
	t.Helper()
	listener := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServer(l, limits, opts...)),
		grpc.ChainStreamInterceptor(grpclimit.StreamServer(l, limits, opts...)))
	pb.RegisterTestServiceServer(server, s)
	ended := make(chan error)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	conn := must.OK(grpc.NewClient(listener.Addr().String(), append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...))(t)
	t.Cleanup(func() { conn.Close() })
	return pb.NewTestServiceClient(conn)
}

// level returns what a key has used of a policy.
func level(t testing.TB, l *limiter.Limiter, p limiter.Policy, key string) float64 {
	t.Helper()
	r := must.OK(l.Check(context.Background(), p, key, 0))(t)
	return r.Level
}
