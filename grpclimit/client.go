package grpclimit

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// UnaryClient returns an interceptor that limits outgoing unary calls by l, as
// httplimit.Transport limits HTTP requests. If l uses a database, the limit covers all
// processes together. A call is sent only if l grants all that limits returns for it. A call
// that gRPC retries counts once.
//
// With a LeakyBucketQueue each call waits for its turn, within its context. If the turn comes
// too late, or another limit denies the call, the error is a *limiter.DeniedError, for
// errors.As, with the code and details of Deny. Without a decision nothing is sent either, and
// the error has a code of the package's comment.
//
// UnaryClient panics if l or limits is nil. The interceptor is safe for concurrent use.
func UnaryClient(l *limiter.Limiter, limits httplimit.Limits) grpc.UnaryClientInterceptor {
	newServer("UnaryClient", l, limits, nil)
	return func(ctx context.Context, method string, message, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := send(ctx, l, limits, cc, method, message); err != nil {
			return err
		}
		return invoke(ctx, method, message, reply, cc, opts...)
	}
}

// StreamClient is UnaryClient for the opening of streams.
func StreamClient(l *limiter.Limiter, limits httplimit.Limits) grpc.StreamClientInterceptor {
	newServer("StreamClient", l, limits, nil)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if err := send(ctx, l, limits, cc, method, nil); err != nil {
			return nil, err
		}
		return open(ctx, desc, cc, method, opts...)
	}
}

// send returns nil if a call may be sent.
func send(ctx context.Context, l *limiter.Limiter, limits httplimit.Limits, cc *grpc.ClientConn, method string, message any) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	r := asRequest(ctx, method, md, message)
	target := cc.CanonicalTarget() // such as dns:///limits.example.com:443
	r.URL.Host = target[strings.LastIndexByte(target, '/')+1:]
	d, err := decide(l, limits, r)
	if err != nil {
		return fail(ctx, d.requests, err)
	}
	if f := denied(d.all.Err()); f != nil { // not Deny: ctx may be the handler's of a server
		return f
	}
	return nil
}

type messageKey struct{}

// Message returns the message of a call in limits: the request of a unary call, and for
// WithMessages what the server received. ctx is the context of the *http.Request that limits
// gets. It is nil at the opening of a stream. So a cost can depend on the message:
//
//	create, ok := grpclimit.Message(r.Context()).(*shop.CreateRequest)
func Message(ctx context.Context) any { return ctx.Value(messageKey{}) }

// asRequest returns the HTTP/2 request that a call is.
func asRequest(ctx context.Context, method string, md metadata.MD, message any) *http.Request {
	h := make(http.Header, len(md))
	for name, values := range md {
		if !strings.HasPrefix(name, ":") {
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Path: method}, Proto: "HTTP/2.0", ProtoMajor: 2, Header: h}
	return r.WithContext(context.WithValue(ctx, messageKey{}, message))
}

// decision is what was decided for a call.
type decision struct {
	requests []limiter.Request
	all      limiter.Results
}

// decide decides all that limits returns for a call, as package httplimit does. Without requests
// the call is allowed.
func decide(l *limiter.Limiter, limits httplimit.Limits, r *http.Request) (*decision, error) {
	requests, err := limits(r)
	if err != nil || len(requests) == 0 {
		return &decision{all: limiter.Results{Allowed: true}}, err
	}
	d := &decision{requests: requests}
	do, doAll := l.Do, l.AllowAll
	if slices.ContainsFunc(requests, func(r limiter.Request) bool { return r.Policy.Algorithm == limiter.LeakyBucketQueue }) {
		do, doAll = l.DoWait, l.WaitAll
	}
	if len(requests) > 1 {
		d.all, err = doAll(r.Context(), requests...)
		return d, err
	}
	one, err := do(r.Context(), requests[0]) // a single request can share a statement with others
	d.all = limiter.Results{Allowed: one.Allowed, DeniedBy: -1, PerRequest: []limiter.Result{one}}
	if !one.Allowed {
		d.all.DeniedBy = 0
	}
	return d, err
}
