package grpclimit_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/grpclimit"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

var atOnce = limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}

func slotOf(r *http.Request) (limiter.Request, error) {
	key, err := httplimit.Header("client")(r)
	return atOnce.Request(key, 1), err
}

func from(client string) context.Context {
	return metadata.NewIncomingContext(context.Background(), metadata.Pairs("client", client))
}

// TestSlots: a client has one call at a time, unary or a stream, until its handler returns,
// fails or panics. Others are not concerned.
func TestSlots(t *testing.T) {
	t.Parallel()
	l := memory()
	unary, stream := grpclimit.UnarySlots(l, slotOf), grpclimit.StreamSlots(l, slotOf)
	call := func(client string, during func(context.Context) error) error {
		answer, err := unary(from(client), "in", method, func(ctx context.Context, in any) (any, error) { return in, during(ctx) })
		if err == nil && answer != "in" {
			t.Errorf("the answer is %v", answer)
		}
		return err
	}
	open := func(client string, during func(context.Context) error) error {
		return stream(nil, streamOf{ctx: from(client)}, &grpc.StreamServerInfo{FullMethod: bidiMethod}, func(_ any, s grpc.ServerStream) error { return during(s.Context()) })
	}
	done, broken := func(context.Context) error { return nil }, errors.New("broken")
	for what, one := range map[string]func(string, func(context.Context) error) error{"unary": call, "stream": open} {
		err := one("a", func(context.Context) error {
			for _, err := range []error{call("a", done), open("a", done)} {
				if retry, ok := grpclimit.RetryAfter(err); status.Code(err) != codes.ResourceExhausted || !ok || retry != 30*time.Second {
					t.Errorf("%s: a second call: %v, %v", what, err, retry)
				}
			}
			return errors.Join(one("b", done), broken)
		})
		if err == nil || status.Code(err) == codes.ResourceExhausted || !errors.Is(err, broken) {
			t.Errorf("%s: the handler's error became %v", what, err)
		}
		func() {
			defer func() { _ = recover() }()
			_ = one("a", func(context.Context) error { panic("a") })
		}()
		must.Succeed(t, one("a", done))
		if err := stream(nil, streamOf{ctx: t.Context()}, &grpc.StreamServerInfo{}, nil); status.Code(err) != codes.PermissionDenied {
			t.Errorf("without a key: %v", err)
		}
	}
	reached := false
	pass := grpclimit.UnarySlots(l, slotOf, grpclimit.WithNoKey(httplimit.Pass))
	must.OK(pass(t.Context(), nil, method, func(context.Context, any) (any, error) { reached = true; return nil, nil }))(t)
	if !reached {
		t.Error("a call without a key did not pass")
	}
}

// TestSlotLost: if the slot is taken away, the handler's context ends. Its answer stands, and the
// loss is logged.
func TestSlotLost(t *testing.T) {
	t.Parallel()
	l := limiter.NewMemory(nil)
	short := atOnce
	short.Period = time.Second
	var log strings.Builder
	limit := grpclimit.UnarySlots(l, func(*http.Request) (limiter.Request, error) { return short.Request("k", 1), nil }, grpclimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	answer, err := limit(t.Context(), nil, method, func(ctx context.Context, _ any) (any, error) {
		must.Succeed(t, l.Reset(context.Background(), short, "k"))
		<-ctx.Done()
		return "done", nil
	})
	if answer != "done" || err != nil || !strings.Contains(log.String(), "a slot was lost") {
		t.Errorf("%v, %v; logged %q", answer, err, log.String())
	}
}

// streamOf is a stream without messages.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamOf) Context() context.Context { return s.ctx }
