package ratelimit

import (
	"context"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit/kuadrantpb"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

const kuadrantName = "kuadrant.service.ratelimit.v1.RateLimitService"

// kuadrant is the service of Kuadrant's gateways: the decision of a request and its count apart.
var kuadrant = grpc.ServiceDesc{
	ServiceName: kuadrantName, HandlerType: (*any)(nil), Metadata: kuadrantpb.File_kuadrantrls_proto.Path(),
	Methods: []grpc.MethodDesc{
		kuadrantMethod("CheckRateLimit", (*Server).checkRateLimit), kuadrantMethod("Report", (*Server).reportHits),
		kuadrantMethod("Reserve", (*Server).reserve), kuadrantMethod("Commit", (*Server).commit),
	},
}

// Spends reports whether a method, by its full name, counts units that it does not decide about, or
// reserves some: Kuadrant's Report, Reserve and Commit.
func Spends(method string) bool {
	name, ok := strings.CutPrefix(method, "/"+kuadrantName+"/")
	return ok && name != "CheckRateLimit"
}

// kuadrantMethod returns a method as generated code does.
func kuadrantMethod[I, O any](name string, call func(*Server, context.Context, *I) (*O, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, between grpc.UnaryServerInterceptor) (any, error) {
		request := new(I)
		if err := decode(request); err != nil {
			return nil, err
		}
		next := func(ctx context.Context, in any) (any, error) {
			return call(srv.(*Server), ctx, in.(*I))
		}
		if between == nil {
			return next(ctx, request)
		}
		return between(ctx, request, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + kuadrantName + "/" + name}, next)
	}}
}

// checkRateLimit answers whether one hit would pass. It counts nothing.
func (s *Server) checkRateLimit(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	all, err := s.match(ctx, request)
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	err = s.oneByOne(ctx, all, s.room)
	passes, err := s.outcome(ctx, all, err)
	if err != nil {
		return nil, err
	}
	return s.response(request, all, passes), nil
}

// room decides a descriptor by whether one hit would pass.
func (s *Server) room(ctx context.Context, a *asked) error {
	switch {
	case a.limit == nil || a.negative:
		return nil
	case a.closed():
		a.hits = 1
		return s.check(ctx, a)
	}
	r, err := s.limiter.Check(ctx, a.policy, a.key, 1)
	if err == nil {
		a.set(r, false)
		if a.floor > 0 && r.Source != limiter.SourceOverride { // a Check has no floor
			a.over = a.known && (a.over || algorithm.Fit(a.ceiling(r.Burst), r.Level, 1) < 1)
		}
	}
	return err
}

// reportHits counts the hits of each descriptor, or gives negative ones back. Above its limit
// nothing is left to count.
func (s *Server) reportHits(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	all, err := s.match(ctx, request)
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	if err = s.oneByOne(ctx, all, s.report); err != nil {
		return nil, s.failed(ctx, err)
	}
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}

// report counts the hits of a descriptor, or gives negative ones back.
func (s *Server) report(ctx context.Context, a *asked) error {
	if a.limit == nil || a.hits == 0 || a.closed() {
		return nil
	}
	count := s.limiter.Charge
	if a.negative {
		count = s.limiter.Refund
	}
	r, err := count(ctx, a.policy, a.key, float64(a.hits))
	if err != nil || a.negative {
		return err
	}
	c := s.metrics.series(a.metric)
	c.total.Add(a.hits)
	c.within.Add(uint64(r.Granted))
	c.over.Add(a.hits - uint64(r.Granted))
	return nil
}
