package serve

import (
	"context"
	"log/slog"
	"net"
	"testing"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit/kuadrantpb"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestStreams: a connection that shows no token has few streams of health and reflection, those
// that end make room, and a stream ends at the first message after its token was revoked.
func TestStreams(t *testing.T) {
	t.Parallel()
	s := &Server{options: Options{Logger: slog.New(slog.DiscardHandler)}}
	s.telemetry = must.OK(startTelemetry(t.Context(), nil, "", &s.room))(t)
	tokens := func(token string) {
		line := must.OK(auth.Line("envoy", auth.Decide, token))(t)
		s.gate.Set(must.OK(auth.Parse("tokens", []byte(line)))(t))
	}
	tokens("one")
	domain := must.OK(ratelimit.Parse("d.yaml", []byte("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]")))(t)
	rate := ratelimit.NewServer(limiter.NewMemory(nil), must.OK(ratelimit.NewConfig(false, domain))(t), ratelimit.Options{Logger: s.options.Logger})
	g, l := s.newGRPC(health.NewServer(), rate), must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	conn := must.OK(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()

	watch := func(ctx context.Context) error {
		w := must.OK(healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{}))(t)
		_, err := w.Recv()
		return err
	}
	first, leave := context.WithCancel(t.Context())
	must.Succeed(t, watch(first))
	open := 1
	for range 100 {
		if err := watch(t.Context()); err == nil {
			open++
		} else if status.Code(err) != codes.ResourceExhausted {
			t.Fatal(err)
		}
	}
	r := must.OK(reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context()))(t)
	_ = r.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}) // fails if it is refused
	if _, err := r.Recv(); open > ratelimit.MaxProbes || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%d of 101 streams are open, and reflection: %v", open, err)
	}
	leave()
	for watch(t.Context()) != nil { // until the server has seen it leave
	}
	shown := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer one")
	for range 2 * ratelimit.MaxProbes {
		must.Succeed(t, watch(shown))
	}

	q := must.OK(quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(shown))(t)
	report := &quotapb.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		{BucketId: &quotapb.BucketId{Bucket: map[string]string{"user": "a"}}, NumRequestsDenied: 1},
	}}
	must.Succeed(t, q.Send(report))
	must.OK(q.Recv())(t)
	tokens("two")
	report.BucketQuotaUsages[0].BucketId.Bucket["user"] = "b"
	must.Succeed(t, q.Send(report))
	if r, err := q.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stream whose token was revoked: %v, error %v", r, err)
	}
}

// TestScopes: Kuadrant's calls that count or reserve units need a token that may spend.
func TestScopes(t *testing.T) {
	t.Parallel()
	s := &Server{options: Options{Logger: slog.New(slog.DiscardHandler)}}
	s.telemetry = must.OK(startTelemetry(t.Context(), nil, "", &s.room))(t)
	lines := must.OK(auth.Line("gateway", auth.Decide, "decides"))(t) + "\n" + must.OK(auth.Line("model", auth.Decide|auth.Spend, "spends"))(t)
	s.gate.Set(must.OK(auth.Parse("tokens", []byte(lines)))(t))
	domain := must.OK(ratelimit.Parse("d.yaml", []byte("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]")))(t)
	rate := ratelimit.NewServer(limiter.NewMemory(nil), must.OK(ratelimit.NewConfig(false, domain))(t), ratelimit.Options{Logger: s.options.Logger})
	g, l := s.newGRPC(health.NewServer(), rate), must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	conn := must.OK(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()

	for method, spends := range map[string]bool{"CheckRateLimit": false, "Report": true, "Reserve": true, "Commit": true} {
		for token, refused := range map[string]codes.Code{"decides": codes.PermissionDenied, "spends": codes.InvalidArgument, "": codes.Unauthenticated} {
			ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
			if token == "decides" && !spends {
				refused = codes.InvalidArgument // admitted: an empty request names no domain
			}
			err := conn.Invoke(ctx, "/kuadrant.service.ratelimit.v1.RateLimitService/"+method, new(kuadrantpb.ReserveRequest), new(kuadrantpb.ReserveResponse))
			if status.Code(err) != refused {
				t.Errorf("%s with token %q: %v, want %v", method, token, err, refused)
			}
		}
	}
}
