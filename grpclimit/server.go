package grpclimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/throttle"
	"github.com/pglimit/pglimit/limiter"
)

// UnaryServer returns an interceptor that limits unary calls by l. It calls the handler only if
// l grants all that limits returns for the call; a call without limits passes. With a
// LeakyBucketQueue the call waits for its turn, within its context.
//
// The header of a call that passes has the fields of SetHeader. A call that does not pass gets
// one of the codes in the package's comment. UnaryServer panics if l or limits is nil. The
// interceptor is safe for concurrent use.
func UnaryServer(l *limiter.Limiter, limits httplimit.Limits, opts ...Option) grpc.UnaryServerInterceptor {
	s := newServer("UnaryServer", l, limits, opts)
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := s.open(ctx, info.FullMethod, message)
		if err != nil {
			return nil, err
		}
		return handler(ctx, message)
	}
}

// StreamServer is UnaryServer for streams. It limits their opening, and with WithMessages each
// message that the server receives.
func StreamServer(l *limiter.Limiter, limits httplimit.Limits, opts ...Option) grpc.StreamServerInterceptor {
	s := newServer("StreamServer", l, limits, opts)
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := s.open(stream.Context(), info.FullMethod, nil)
		if err != nil {
			return err
		}
		return handler(service, &limited{stream, ctx, s, info.FullMethod})
	}
}

// Option configures UnaryServer, StreamServer, UnarySlots and StreamSlots.
type Option func(*server)

// WithNoKey sets how a call is handled for which limits returns httplimit.ErrNoKey: Refuse or
// Pass of package httplimit. Default: Refuse. It panics for any other value.
func WithNoKey(k httplimit.Keyless) Option {
	require(k <= httplimit.Pass, "WithNoKey: must be Refuse or Pass")
	return func(s *server) { s.keyless = k }
}

// WithMessages also limits each message that a stream's server receives, the single one of a
// server-streaming call included. With a LeakyBucketQueue RecvMsg waits for the message's turn,
// which slows the client down. If a message is denied, RecvMsg returns the error of Deny, and
// the handler should return it. Default: nil, not limited. Unary calls ignore it.
func WithMessages(limits httplimit.Limits) Option { return func(s *server) { s.messages = limits } }

// WithLogger sets the logger of the causes of InvalidArgument and Unavailable and of lost slots (level
// warn), and of Internal (level error). Each code is logged at most once a minute; since_last is the number of
// errors since its last line, itself included. Of a text the first 1,000 bytes are logged.
// Default: slog.Default(), also if l is nil.
func WithLogger(l *slog.Logger) Option { return func(s *server) { s.logger = l } }

type server struct {
	limiter          *limiter.Limiter
	limits, messages httplimit.Limits
	keyless          httplimit.Keyless
	logger           *slog.Logger
	logged           throttle.Each // by code
}

func newServer(what string, l *limiter.Limiter, limits httplimit.Limits, opts []Option) *server {
	require(l != nil, what+": the limiter is nil")
	require(limits != nil, what+": limits is nil")
	s := &server{limiter: l, limits: limits}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// open decides a call, and returns the context for its handler.
func (s *server) open(ctx context.Context, method string, message any) (context.Context, error) {
	d, err := s.decide(ctx, method, message, s.decideBy(s.limits))
	if err != nil || len(d.requests) == 0 {
		return ctx, err
	}
	_ = SetHeader(ctx, d.all.PerRequest...) // fails only if an interceptor outside has sent the header
	return context.WithValue(ctx, decisionKey{}, d), nil
}

// decideBy returns the function that decides by limits.
func (s *server) decideBy(limits httplimit.Limits) func(*http.Request) (*decision, error) {
	return func(r *http.Request) (*decision, error) { return decide(s.limiter, limits, r) }
}

// decide decides a call or message. It returns the error for the client if that does not pass.
func (s *server) decide(ctx context.Context, method string, message any, by func(*http.Request) (*decision, error)) (*decision, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	r := asRequest(ctx, method, md, message)
	r.Host = strings.Join(md[":authority"], "")
	if p, ok := peer.FromContext(ctx); ok {
		r.RemoteAddr = p.Addr.String()
	}
	d, err := by(r)
	switch {
	case err == nil:
		return d, Deny(ctx, d.all.Err())
	case errors.Is(err, httplimit.ErrNoKey) && s.keyless == httplimit.Pass:
		return d, nil
	}
	f := fail(ctx, d.requests, err)
	s.log(ctx, f)
	return d, f
}

func (s *server) log(ctx context.Context, f *failure) {
	level, code := slog.LevelWarn, f.status.Code()
	switch code {
	case codes.Internal:
		level = slog.LevelError
	case codes.InvalidArgument, codes.Unavailable:
	default:
		return
	}
	s.warn(ctx, level, code.String(), "grpclimit: no decision", f)
}

// warn logs what happened, of each kind at most once a minute.
func (s *server) warn(ctx context.Context, level slog.Level, kind, what string, err error) {
	if since, ok := s.logged.Next(kind, time.Minute); ok {
		logger, text := s.logger, err.Error()
		if logger == nil {
			logger = slog.Default()
		}
		logger.Log(ctx, level, what, "since_last", since, "error", strings.ToValidUTF8(text[:min(len(text), 1000)], ""))
	}
}

// limited is a stream whose opening has passed.
type limited struct {
	grpc.ServerStream
	ctx    context.Context
	server *server
	method string
}

func (l *limited) Context() context.Context { return l.ctx }

func (l *limited) RecvMsg(message any) error {
	err := l.ServerStream.RecvMsg(message)
	if err == nil && l.server.messages != nil {
		_, err = l.server.decide(l.ctx, l.method, message, l.server.decideBy(l.server.messages))
	}
	return err
}

type decisionKey struct{}

// FromContext returns what UnaryServer or StreamServer requested for a call that passed, and the
// results, as httplimit.FromContext does. ctx is the handler's context. The handler can give
// units back with limiter.Limiter.Undo, such as those of a login that succeeded.
func FromContext(ctx context.Context) (requests []limiter.Request, all limiter.Results, ok bool) {
	d, ok := ctx.Value(decisionKey{}).(*decision)
	if !ok {
		return nil, limiter.Results{DeniedBy: -1}, false
	}
	return d.requests, d.all, true
}

// require panics with a programming error if ok is false.
func require(ok bool, what string) {
	if !ok {
		panic("grpclimit: " + what)
	}
}
