package ratelimit

import (
	"context"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// kuadrant is the service of Kuadrant's gateways: the decision of a request and its count apart,
// in Envoy's messages.
var kuadrant = grpc.ServiceDesc{
	ServiceName: "kuadrant.service.ratelimit.v1.RateLimitService", HandlerType: (*any)(nil), Metadata: "kuadrantrls.proto",
	Methods: []grpc.MethodDesc{kuadrantMethod("CheckRateLimit", (*Server).checkRateLimit), kuadrantMethod("Report", (*Server).reportHits)},
}

// Clients look the service up by reflection.
func init() {
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("kuadrantrls.proto"), Package: proto.String("kuadrant.service.ratelimit.v1"), Syntax: proto.String("proto3"),
		Dependency: []string{pb.File_envoy_service_ratelimit_v3_rls_proto.Path()},
		Service:    []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("RateLimitService")}},
	}
	name := func(m protoreflect.ProtoMessage) *string {
		return proto.String("." + string(m.ProtoReflect().Descriptor().FullName()))
	}
	for _, m := range kuadrant.Methods {
		file.Service[0].Method = append(file.Service[0].Method, &descriptorpb.MethodDescriptorProto{
			Name: &m.MethodName, InputType: name(&pb.RateLimitRequest{}), OutputType: name(&pb.RateLimitResponse{}),
		})
	}
	made, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err == nil {
		err = protoregistry.GlobalFiles.RegisterFile(made)
	}
	if err != nil {
		panic(err)
	}
}

// kuadrantMethod returns a method as generated code does.
func kuadrantMethod(name string, call func(*Server, context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, between grpc.UnaryServerInterceptor) (any, error) {
		var request pb.RateLimitRequest
		if err := decode(&request); err != nil {
			return nil, err
		}
		next := func(ctx context.Context, in any) (any, error) {
			return call(srv.(*Server), ctx, in.(*pb.RateLimitRequest))
		}
		if between == nil {
			return next(ctx, &request)
		}
		return between(ctx, &request, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/kuadrant.service.ratelimit.v1.RateLimitService/" + name}, next)
	}}
}

// checkRateLimit answers whether one hit would pass. It counts nothing.
func (s *Server) checkRateLimit(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	all, err := s.match(ctx, request)
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	err = s.oneByOne(ctx, all, func(ctx context.Context, a *asked) error {
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
	})
	passes, err := s.outcome(ctx, all, err)
	if err != nil {
		return nil, err
	}
	return s.response(request, all, passes), nil
}

// reportHits counts the hits of each descriptor, or gives negative ones back. Above its limit
// nothing is left to count.
func (s *Server) reportHits(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	all, err := s.match(ctx, request)
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	for _, a := range all {
		if a.limit == nil || a.hits == 0 || a.closed() {
			continue
		}
		count := s.limiter.Charge
		if a.negative {
			count = s.limiter.Refund
		}
		r, err := count(ctx, a.policy, a.key, float64(a.hits))
		if err != nil {
			return nil, s.failed(ctx, err)
		}
		if a.negative {
			continue
		}
		c := s.metrics.series(a.metric)
		c.total.Add(a.hits)
		c.within.Add(uint64(r.Granted))
		c.over.Add(a.hits - uint64(r.Granted))
	}
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}
