package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/ratelimit"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/auth"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/serve/httpapi"
)

// Bounds of gRPC.
const (
	maxMessage = 1 << 20 // bytes
	maxStreams = 1000    // of a connection
)

// newGRPC returns a server with health, reflection and, unless it is nil, the rate limit service.
func (s *Server) newGRPC(h *health.Server, rate *ratelimit.Server) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeader), grpc.ConnectionTimeout(headerTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
			defer s.countCall(info.FullMethod, &err)
			if err := s.enter(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return next(traced(ctx), in)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer s.countCall(info.FullMethod, &err)
			enter := func() error { return s.enter(stream.Context(), info.FullMethod) }
			if err := enter(); err != nil {
				return err
			}
			return next(srv, guarded{stream, enter})
		}, ratelimit.FewProbes(func(ctx context.Context) bool { return s.gate.Guarded() && s.admit(ctx, auth.Decide) == nil })),
	}
	if s.rpcTLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.rpcTLS)))
	}
	g := grpc.NewServer(options...)
	if rate != nil {
		rate.Register(g)
	}
	healthpb.RegisterHealthServer(g, h)
	reflection.Register(g)
	return g
}

// startRateLimit returns Envoy's rate limit service, which follows its configuration until ctx
// ends; nil if it is not wanted.
func (s *Server) startRateLimit(ctx context.Context, h *health.Server) (*ratelimit.Server, error) {
	if s.options.RateLimit == nil {
		return nil, nil
	}
	rate, follow, err := ratelimit.New(*s.options.RateLimit, nil, ratelimit.Options{NeedConfig: true, Health: h, Logger: s.options.Logger})
	if err != nil {
		return nil, err
	}
	if s.rates != nil {
		rate.SetConfig(s.rates, nil)
	}
	s.tasks.Go(func() { follow(ctx) })
	return rate, nil
}

// countCall counts a call and its status.
func (s *Server) countCall(method string, err *error) {
	s.telemetry.requests.WithLabelValues("grpc", method, status.Code(*err).String()).Inc()
}

// guarded is a stream whose caller may have lost its token at any message.
type guarded struct {
	grpc.ServerStream
	enter func() error
}

// RecvMsg reads a message.
func (g guarded) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return g.enter()
}

// enter returns the error of a caller that may not call a method. Health and reflection, whose
// names begin with grpc, need no token.
func (s *Server) enter(ctx context.Context, method string) error {
	if strings.HasPrefix(method, "/grpc.") {
		return nil
	}
	if ratelimit.Spends(method) {
		return s.admit(ctx, auth.Spend)
	}
	return s.admit(ctx, auth.Decide)
}

// admit returns the error of a caller whose token has not the scope.
func (s *Server) admit(ctx context.Context, needs auth.Scope) error {
	token := ""
	if all := metadata.ValueFromIncomingContext(ctx, httpapi.TokenHeader); len(all) > 0 {
		token = all[0]
	} else if all := metadata.ValueFromIncomingContext(ctx, "authorization"); len(all) > 0 {
		token = auth.Bearer(all[0])
	}
	_, err := s.gate.Enter(token, needs)
	var scope *auth.ScopeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &scope):
		return status.Error(codes.PermissionDenied, err.Error())
	}
	return status.Error(codes.Unauthenticated, err.Error())
}
