package ratelimit

import (
	"errors"
	"net"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/internal/must"
)

// TestKuadrant: CheckRateLimit counts nothing, Report counts up to the limit, and clients
// find the service by reflection. Without a token, streams of health are few and headers short.
func TestKuadrant(t *testing.T) {
	t.Parallel()
	s := server(t, quotas, Options{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	g, failed := s.grpcServer(Env{})
	if err = errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	conn := must.OK(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	call := func(method string, hits uint32, users ...string) (*pb.RateLimitResponse, error) {
		request := &pb.RateLimitRequest{Domain: "d", HitsAddend: hits}
		for _, user := range users {
			request.Descriptors = append(request.Descriptors, descriptorOf("user", user))
		}
		var r pb.RateLimitResponse
		return &r, conn.Invoke(t.Context(), "/kuadrant.service.ratelimit.v1.RateLimitService/"+method, request, &r)
	}
	for i, step := range []struct {
		method string
		hits   uint32
		users  []string
		want   pb.RateLimitResponse_Code
	}{
		{"CheckRateLimit", 0, []string{"a"}, pb.RateLimitResponse_OK},
		{"Report", 99, []string{"a", "b"}, pb.RateLimitResponse_OK},
		{"CheckRateLimit", 500, []string{"a"}, pb.RateLimitResponse_OK}, // for one
		{"CheckRateLimit", 0, []string{"a"}, pb.RateLimitResponse_OK},
		{"Report", 0, []string{"a"}, pb.RateLimitResponse_OK}, // one
		{"CheckRateLimit", 0, []string{"a"}, pb.RateLimitResponse_OVER_LIMIT},
		{"CheckRateLimit", 0, []string{"b", "a"}, pb.RateLimitResponse_OVER_LIMIT},
		{"Report", 50, []string{"a"}, pb.RateLimitResponse_OK},
		{"CheckRateLimit", 0, []string{"b", "free", "trial"}, pb.RateLimitResponse_OK},
		{"Report", 9, []string{"trial", "none", "free"}, pb.RateLimitResponse_OK},
		{"CheckRateLimit", 0, []string{"trial"}, pb.RateLimitResponse_OK}, // a shadow
		{"CheckRateLimit", 0, []string{"none"}, pb.RateLimitResponse_OVER_LIMIT},
	} {
		if r, err := call(step.method, step.hits, step.users...); err != nil || r.GetOverallCode() != step.want {
			t.Errorf("step %d: %v, error %v; want %v", i, r, err, step.want)
		}
	}
	m, _, err := s.Config().match("d", &rlcommon.RateLimitDescriptor{Entries: descriptorOf("user", "a").GetEntries()})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.limiter.Check(t.Context(), m.policy, m.key, 0); err != nil || r.Level != 100 {
		t.Errorf("%v in use, error %v; want 100", r.Level, err)
	}
	for _, method := range []string{"CheckRateLimit", "Report"} {
		if _, err := call(method, 1); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s without descriptors: %v", method, err)
		}
	}
	stream := must.OK(reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context()))(t)
	if err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: kuadrant.ServiceName}}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || len(r.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("reflection: %v, error %v", r, err)
	}
	fewProbes(t, conn)
}

// fewProbes: of many streams of health only some are open, and a long header is refused.
func fewProbes(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	open := 0
	for range 100 {
		w, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		if err == nil {
			open++
		}
	}
	long := metadata.AppendToOutgoingContext(t.Context(), "long", strings.Repeat("x", 1<<20))
	if _, err := healthpb.NewHealthClient(conn).Check(long, &healthpb.HealthCheckRequest{}); open == 0 || open > MaxProbes || err == nil {
		t.Errorf("%d of 100 streams are open, want %d; a header of 1 MB: error %v", open, MaxProbes, err)
	}
}
