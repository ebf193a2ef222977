package grpclimit_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/grpclimit"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// TestClient: a call is sent only if it was granted. Denials have the code and details that a
// server's have, and are a DeniedError, as with httplimit.Transport.
func TestClient(t *testing.T) {
	t.Parallel()
	l := memory()
	never := errors.New("never")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	soon, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const late = -1 // depends on the deadline
	for _, c := range []struct {
		name   string
		limits httplimit.Limits
		ctx    context.Context
		code   codes.Code
		is     error
		retry  time.Duration
	}{
		{"granted", fixed(hourly.Request("k", 1)), soon, codes.OK, nil, 0}, // once each, unary and stream
		{"denied", fixed(hourly.Request("k", 1)), soon, codes.ResourceExhausted, nil, time.Hour},
		{"several denied", fixed(lane.Request("k", 1), hourly.Request("k", 1)), soon, codes.ResourceExhausted, nil, time.Hour},
		{"above the burst", fixed(hourly.Request("k", 3)), soon, codes.ResourceExhausted, nil, 0},
		{"no requests", fixed(), soon, codes.OK, nil, 0},
		{"no key", failing(httplimit.ErrNoKey), soon, codes.PermissionDenied, httplimit.ErrNoKey, 0},
		{"limits fails", failing(never), soon, codes.Internal, never, 0},
		{"invalid", fixed(hourly.Request("k", 0)), soon, codes.Internal, limiter.ErrInvalid, 0},
		{"cancelled", fixed(hourly.Request("l", 1)), cancelled, codes.Canceled, context.Canceled, 0},
		{"a turn too late", fixed(lane.Request("full", 1)), soon, codes.ResourceExhausted, nil, late},
	} {
		if c.name == "a turn too late" {
			if r, err := l.Do(t.Context(), lane.Request("full", 1)); err != nil || !r.Allowed {
				t.Fatal(r, err)
			}
		}
		s := &service{}
		client := serve(t, s, memory(), fixed(), nil,
			grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(l, c.limits)), grpc.WithChainStreamInterceptor(grpclimit.StreamClient(l, c.limits)))
		_, unary := client.UnaryCall(c.ctx, &pb.SimpleRequest{})
		for kind, err := range map[string]error{"unary": unary, "stream": open(c.ctx, client)} {
			retry, _ := grpclimit.RetryAfter(err)
			var denied *limiter.DeniedError
			if c.retry == late && retry > 0 {
				retry = late
			}
			if status.Code(err) != c.code || c.is != nil && !errors.Is(err, c.is) || retry != c.retry || errors.As(err, &denied) != (c.code == codes.ResourceExhausted) {
				t.Errorf("%s: %s: got %v, %v, want %v", c.name, kind, err, retry, c.code)
			}
		}
		want := int64(0)
		if c.code == codes.OK {
			want = 1
		}
		if s.calls.Load() != want || s.opened.Load() != want {
			t.Errorf("%s: %d calls and %d streams were sent, want %d each", c.name, s.calls.Load(), s.opened.Load(), want)
		}
	}
}

// TestClientKeys: limits sees the target, the method, the metadata and the message.
func TestClientKeys(t *testing.T) {
	t.Parallel()
	var got []string
	limits := func(r *http.Request) ([]limiter.Request, error) {
		_, isUnary := grpclimit.Message(r.Context()).(*pb.SimpleRequest)
		got = append(got, r.URL.Hostname(), r.URL.Path, r.Header.Get("X-Tenant"))
		if isUnary != (r.URL.Path == unaryMethod) {
			t.Errorf("the message of %s is %v", r.URL.Path, grpclimit.Message(r.Context()))
		}
		return nil, nil
	}
	client := serve(t, &service{}, memory(), fixed(), nil,
		grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(memory(), limits)), grpc.WithChainStreamInterceptor(grpclimit.StreamClient(memory(), limits)))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-tenant", "blue")
	if _, err := client.UnaryCall(ctx, &pb.SimpleRequest{}); err != nil {
		t.Error(err)
	}
	if err := open(ctx, client); err != nil {
		t.Error(err)
	}
	if want := []string{"127.0.0.1", unaryMethod, "blue", "127.0.0.1", bidiMethod, "blue"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestClientInHandler: a call that a handler makes and that its own limit denies leaves the
// handler's answer alone.
func TestClientInHandler(t *testing.T) {
	t.Parallel()
	l := memory()
	other := serve(t, &service{}, l, fixed(), nil, grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(l, fixed(hourly.Request("k", 3)))))
	s := &service{during: func(ctx context.Context) error {
		if _, err := other.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the other call got %v", err)
		}
		return nil
	}}
	var trailer metadata.MD
	if _, err := serve(t, s, l, fixed(), nil).UnaryCall(t.Context(), &pb.SimpleRequest{}, grpc.Trailer(&trailer)); err != nil || lines(trailer) != "" {
		t.Errorf("the handler's call got %v and the trailer %v", err, trailer)
	}
}

// TestClientRetries: a client with a retry policy waits as long as the denial says and gets in.
// It does not retry what can never be granted, and its own limit counts a call once.
func TestClientRetries(t *testing.T) {
	t.Parallel()
	var now, attempts atomic.Int64 // now in milliseconds
	server := limiter.NewMemory(&limiter.Config{Now: func() time.Time { return time.UnixMilli(now.Load()) }})
	limits := func(cost float64) httplimit.Limits {
		return func(r *http.Request) ([]limiter.Request, error) {
			attempts.Add(1)
			if r.Header.Get("Grpc-Previous-Rpc-Attempts") != "" { // the client has waited
				now.Add(50)
			}
			return []limiter.Request{{Policy: limiter.Policy{Name: "calls", Algorithm: limiter.GCRA, Limit: 20, Period: time.Second, Burst: 1}, Key: "k", Cost: cost}}, nil
		}
	}
	// Without the server's word, gRPC would wait for up to an hour.
	retrying := grpc.WithDefaultServiceConfig(`{"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,
		"initialBackoff":"3600s","maxBackoff":"3600s","backoffMultiplier":1,"retryableStatusCodes":["RESOURCE_EXHAUSTED"]}}]}`)
	own := memory()
	client := serve(t, &service{}, server, limits(1), nil, retrying, grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(own, fixed(wide.Request("k", 1)))))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i, want := range []int64{1, 3} { // the second call is denied once
		if _, err := client.UnaryCall(ctx, &pb.SimpleRequest{}); err != nil || attempts.Load() != want {
			t.Errorf("call %d got %v after %d attempts, want %d", i, err, attempts.Load(), want)
		}
	}
	if got := level(t, own, wide, "k"); got != 2 {
		t.Errorf("the client counted %v calls, want 2", got)
	}
	attempts.Store(0)
	client = serve(t, &service{}, server, limits(2), nil, retrying)
	if _, err := client.UnaryCall(ctx, &pb.SimpleRequest{}); status.Code(err) != codes.ResourceExhausted || attempts.Load() != 1 {
		t.Errorf("what can never be granted got %v after %d attempts, want 1", err, attempts.Load())
	}
}
