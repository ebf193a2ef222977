package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/limiter"
)

// Options set up a Server. The zero value has the defaults of envoyproxy/ratelimit.
type Options struct {
	// CountEach counts as envoyproxy/ratelimit does: each descriptor by itself, also hits that
	// are above its limit or whose request is denied by another. Default: false; all or nothing
	// is counted. Other algorithms decide together, but for descriptors that have hits.
	CountEach bool
	// Shadow answers OK to requests that are over their limits. Default: false.
	Shadow bool
	// Quota treats all limits as if they had quota_mode. Default: false.
	Quota bool
	// Headers are the headers added to responses, or nil for none.
	Headers *Headers
	// Metadata adds the request and the metadata of its limits to responses, as dynamic
	// metadata. Default: false.
	Metadata bool
	// NearLimit is the part of a limit from which on hits are counted as near the limit.
	// Default: 0.8.
	NearLimit float32
	// NeedConfig makes the Server unhealthy until it has a configuration with a domain. Default:
	// false.
	NeedConfig bool
	// Health gets the state, under the name ratelimit. Default: one that has it without a name,
	// too.
	Health *health.Server
	// Logger gets changes of the configuration and faults. Default: slog.Default().
	Logger *slog.Logger
	// Now is the clock of answers that no limit decided. Default: time.Now.
	Now func() time.Time
}

// Headers names headers of responses.
type Headers struct{ Limit, Remaining, Reset string }

// Server answers ShouldRateLimit. It is safe for concurrent use.
type Server struct {
	pb.UnimplementedRateLimitServiceServer
	limiter Limiter // before isOpen
	isOpen  atomic.Bool
	options Options
	config  atomic.Pointer[Config]
	metrics metrics
	buckets atomic.Int64  // of all streams of quotas
	logged  throttle.Each // errors of requests, by what their clients get
	health  *health.Server
	checks  sync.Mutex // one change of healthy at a time
	healthy atomic.Bool
	drained atomic.Bool
	drain   chan struct{} // is closed by the first Drain
	first   chan struct{} // is closed by the first SetConfig
	isFirst sync.Once
}

// maxDescriptors bounds the descriptors of a request, as the limiter does.
const maxDescriptors = 1000

// serviceName is the name of the service for health checks.
const serviceName = "ratelimit"

// NewServer returns a Server that decides with a limiter by a configuration. If one is nil, it
// answers Unavailable until SetLimiter and SetConfig.
func NewServer(l Limiter, config *Config, options Options) *Server {
	options.NearLimit = cmp.Or(options.NearLimit, 0.8)
	options.Logger = cmp.Or(options.Logger, slog.Default())
	if options.Now == nil {
		options.Now = time.Now
	}
	s := &Server{limiter: l, options: options, health: options.Health, first: make(chan struct{}), drain: make(chan struct{})}
	if s.health == nil {
		s.health = health.NewServer()
	}
	s.config.Store(config)
	s.isOpen.Store(l != nil)
	s.checkHealth()
	return s
}

// SetLimiter sets the limiter of a Server that has none.
func (s *Server) SetLimiter(l Limiter) {
	s.limiter = l
	s.isOpen.Store(true)
	s.checkHealth()
}

// Health answers gRPC's health checks, under the name ratelimit and without one.
func (s *Server) Health() *health.Server { return s.health }

func (s *Server) checkHealth() {
	s.checks.Lock()
	defer s.checks.Unlock()
	config := s.config.Load()
	healthy := s.isOpen.Load() && (!s.options.NeedConfig || config != nil && len(config.domains) > 0)
	s.healthy.Store(healthy)
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if healthy {
		state = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(serviceName, state)
	if s.options.Health == nil {
		s.health.SetServingStatus("", state)
	}
}

// Drain makes health checks fail and ends streams, so that proxies go elsewhere before the Server
// stops.
func (s *Server) Drain() {
	if !s.drained.Swap(true) {
		close(s.drain)
	}
	s.health.Shutdown()
}

// Register registers the service, that of quotas and Kuadrant's.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	pb.RegisterRateLimitServiceServer(g, s)
	quotapb.RegisterRateLimitQuotaServiceServer(g, s)
	g.RegisterService(&kuadrant, s)
}

// SetConfig replaces the configuration. If err is not nil, it notes that there was one that
// could not be read, and the Server keeps what it has.
func (s *Server) SetConfig(config *Config, err error) {
	defer s.isFirst.Do(func() { close(s.first) })
	if err != nil {
		s.metrics.configErrors.Add(1)
		s.options.Logger.Error("the new configuration is not valid; the last one stays in use", "error", err)
		return
	}
	s.metrics.configLoads.Add(1)
	s.config.Store(config)
	s.checkHealth()
	s.options.Logger.Info("a new configuration is in use", "domains", len(config.domains))
}

// Config returns the configuration in use, or nil if there is none yet.
func (s *Server) Config() *Config { return s.config.Load() }

// ShouldRateLimit decides a request. Errors of the request are InvalidArgument.
func (s *Server) ShouldRateLimit(ctx context.Context, request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	defer s.metrics.timed(time.Now())
	all, err := s.match(ctx, request)
	if err != nil {
		s.metrics.serviceErrors.Add(1)
		return nil, err
	}
	passes, err := s.decide(ctx, all)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		s.account(a)
	}
	return s.response(request, all, passes), nil
}

// ready returns the configuration, or the error of a Server that has none or no limiter yet.
func (s *Server) ready() (*Config, error) {
	config := s.config.Load()
	switch {
	case !s.isOpen.Load():
		return nil, status.Error(codes.Unavailable, "no decision: the database did not answer since the start")
	case config == nil:
		return nil, status.Error(codes.Unavailable, "no rate limit configuration loaded")
	}
	return config, nil
}

// match returns the limits of a request's descriptors, without those that others replace. It ends
// with ctx.
func (s *Server) match(ctx context.Context, request *pb.RateLimitRequest) ([]*asked, error) {
	config, err := s.ready()
	switch {
	case err != nil:
		return nil, err
	case request.GetDomain() == "":
		return nil, status.Error(codes.InvalidArgument, "domain: rate limit domain must not be empty")
	case len(request.GetDescriptors()) > maxDescriptors:
		return nil, status.Errorf(codes.InvalidArgument, "descriptors: there are %d, and must be at most %d", len(request.GetDescriptors()), maxDescriptors)
	case len(request.GetDescriptors()) == 0:
		return nil, status.Error(codes.InvalidArgument, "descriptors: rate limit descriptor list must not be empty")
	}
	all, replaced := make([]*asked, len(request.GetDescriptors())), map[string]bool{}
	for i, d := range request.GetDescriptors() {
		if ctx.Err() != nil {
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		m, known, err := config.match(request.GetDomain(), d)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "descriptors[%d].%v", i, err)
		}
		if !known {
			s.metrics.unknownDomain(request.GetDomain())
		}
		all[i] = &asked{match: m, hits: hits(request, d), spent: d.GetHitsAddend() != nil, negative: d.GetIsNegativeHits()}
		if m.limit == nil {
			continue
		}
		for _, name := range m.replaces {
			replaced[name] = true
		}
		if all[i].unlimited = m.limit.unlimited; all[i].unlimited {
			all[i].limit = nil
		}
	}
	for _, a := range all {
		if a.limit != nil && a.name != "" && replaced[a.name] {
			a.limit = nil
		}
	}
	return all, nil
}

// failed returns the gRPC error of a request without a decision. The proxy lets it pass unless
// its failure_mode_deny is set. What err says may name the database, so it is only logged.
func (s *Server) failed(ctx context.Context, err error) error {
	if errors.Is(err, limiter.ErrInvalid) {
		s.metrics.serviceErrors.Add(1)
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s.metrics.databaseErrors.Add(1)
	code, text := codes.Unavailable, "the database did not answer"
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, limiter.ErrOverloaded):
		code, text = codes.ResourceExhausted, "too many requests are waiting for the database"
	case errors.Is(err, limiter.ErrMisconfigured):
		code, text = codes.FailedPrecondition, "the database refuses decisions: see the server's log"
	case !errors.Is(err, limiter.ErrUnavailable):
		code, text = codes.Unavailable, "see the server's log"
	}
	if since, passes := s.logged.Next(text, time.Minute); passes {
		s.options.Logger.Error("the database did not decide or count requests", "error", err, "since_last", since)
	}
	return status.Error(code, "no decision: "+text)
}
