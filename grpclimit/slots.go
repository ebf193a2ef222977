package grpclimit

import (
	"context"
	"errors"
	"log/slog"
	"net/http"

	"google.golang.org/grpc"

	"github.com/pglimit/pglimit/limiter"
)

// UnarySlots returns an interceptor that limits the unary calls served at a time: each holds the
// slot that slot returns for it, of a policy of the algorithm limiter.Concurrency, until the
// handler returns. slot maps a call to one request as httplimit.Limits does to several.
//
//	perTenant := limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 10, Period: 30 * time.Second}
//	grpclimit.UnarySlots(l, func(r *http.Request) (limiter.Request, error) {
//		return perTenant.Request(r.Header.Get("X-Tenant"), 1), nil
//	})
//
// The slot is renewed while the handler runs, as limiter.Limiter.Keep does. So the Period may be
// short: the slots of a process that died are held for that long. If a slot is lost, by a Reset
// or because the database was away, the handler's context ends. A call whose handler succeeded
// nevertheless is answered as that says, and the loss is logged.
//
// A call without a slot gets one of the codes in the package's comment. The RetryInfo of a denied
// one is the time until a slot ends that is not renewed. The header of a call that passes has no
// fields. UnarySlots panics if l or slot is nil. The interceptor is safe for concurrent use.
func UnarySlots(l *limiter.Limiter, slot func(*http.Request) (limiter.Request, error), opts ...Option) grpc.UnaryServerInterceptor {
	s := newSlots("UnarySlots", l, slot, opts)
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (answer any, err error) {
		err = s.hold(ctx, info.FullMethod, message, func(ctx context.Context) error {
			answer, err = handler(ctx, message)
			return err
		})
		return answer, err
	}
}

// StreamSlots is UnarySlots for streams: each holds its slot until its handler returns.
// WithMessages limits the messages too.
func StreamSlots(l *limiter.Limiter, slot func(*http.Request) (limiter.Request, error), opts ...Option) grpc.StreamServerInterceptor {
	s := newSlots("StreamSlots", l, slot, opts)
	return func(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return s.hold(stream.Context(), info.FullMethod, nil, func(ctx context.Context) error {
			return handler(service, &limited{stream, ctx, s, info.FullMethod})
		})
	}
}

func newSlots(what string, l *limiter.Limiter, slot func(*http.Request) (limiter.Request, error), opts []Option) *server {
	require(slot != nil, what+": slot is nil")
	return newServer(what, l, func(r *http.Request) ([]limiter.Request, error) {
		in, err := slot(r)
		if err != nil {
			return nil, err
		}
		return []limiter.Request{in}, nil
	}, opts)
}

// hold calls serve while the call holds its slot, and returns serve's error.
func (s *server) hold(ctx context.Context, method string, message any, serve func(context.Context) error) (err error) {
	var slot limiter.Slot
	_, err = s.decide(ctx, method, message, func(r *http.Request) (d *decision, err error) {
		d = &decision{all: limiter.Results{Allowed: true}}
		if d.requests, err = s.limits(r); err == nil {
			slot, err = s.limiter.DoAcquire(ctx, d.requests[0], 0)
			d.all = limiter.Results{Allowed: slot.Result.Allowed, PerRequest: []limiter.Result{slot.Result}}
		}
		return d, err
	})
	if err != nil {
		return err
	}
	if slot.ID == "" { // a call without a key that may pass
		return serve(ctx)
	}
	kept := s.limiter.Keep(ctx, slot, func(ctx context.Context) error {
		err = serve(ctx)
		return nil
	})
	if errors.Is(kept, limiter.ErrNoSlot) {
		s.warn(context.WithoutCancel(ctx), slog.LevelWarn, "slot", "grpclimit: a slot was lost while its call was served", kept)
	}
	return err
}
