package grpclimit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/grpclimit"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// at is the time in the examples, so that their output is the same each time.
var at = &limiter.Config{Now: func() time.Time { return time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC) }}

var (
	ctx    = context.Background()
	method = &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Create"}
	login  = limiter.Policy{Name: "login", Algorithm: limiter.FixedWindow, Limit: 1, Period: time.Minute}
)

// handler stands for a method of the service.
func handler(context.Context, any) (any, error) { return "done", nil }

func Example() {
	l := limiter.NewMemory(at) // limiter.New(pool, nil) shares limits between processes
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServer(l, httplimit.Each(httplimit.Header("X-Api-Key"), login))),
		grpc.ChainStreamInterceptor(grpclimit.StreamServer(l, httplimit.Each(httplimit.Header("X-Api-Key"), login))))
	fmt.Println(len(server.GetServiceInfo()), "services registered yet")
	// Output: 0 services registered yet
}

func ExampleUnaryServer() {
	limit := grpclimit.UnaryServer(limiter.NewMemory(at), httplimit.Each(httplimit.Header("X-Api-Key"), login))
	call := metadata.NewIncomingContext(ctx, metadata.Pairs("x-api-key", "alice"))
	for range 2 {
		answer, err := limit(call, "the request", method, handler)
		retry, _ := grpclimit.RetryAfter(err)
		fmt.Println(answer, status.Code(err), retry)
	}
	// Output:
	// done OK 0s
	// <nil> ResourceExhausted 1m0s
}

// quiet is a stream without messages.
type quiet struct{ grpc.ServerStream }

func (quiet) Context() context.Context { return ctx }
func (quiet) RecvMsg(any) error        { return nil }

func ExampleStreamServer() {
	all := func(*http.Request) (string, error) { return "all", nil }
	limit := grpclimit.StreamServer(limiter.NewMemory(at), httplimit.Each(all, login))
	for range 2 {
		err := limit(nil, quiet{}, &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}, func(any, grpc.ServerStream) error { return nil })
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}

func ExampleUnarySlots() {
	atOnce := limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}
	limit := grpclimit.UnarySlots(limiter.NewMemory(at), func(r *http.Request) (limiter.Request, error) {
		return atOnce.Request(r.Header.Get("X-Tenant"), 1), nil
	})
	call := metadata.NewIncomingContext(ctx, metadata.Pairs("x-tenant", "acme"))
	answer, err := limit(call, "the request", method, func(ctx context.Context, _ any) (any, error) {
		_, err := limit(call, "another meanwhile", method, handler)
		return "done", err
	})
	fmt.Println(answer, status.Code(err))
	fmt.Println(limit(call, "one more", method, handler))
	// Output:
	// done ResourceExhausted
	// done <nil>
}

func ExampleStreamSlots() {
	atOnce := limiter.Policy{Name: "at-once", Algorithm: limiter.Concurrency, Limit: 1, Period: 30 * time.Second}
	limit := grpclimit.StreamSlots(limiter.NewMemory(at), func(*http.Request) (limiter.Request, error) { return atOnce.Request("all", 1), nil })
	info := &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}
	err := limit(nil, quiet{}, info, func(any, grpc.ServerStream) error {
		return limit(nil, quiet{}, info, nil)
	})
	fmt.Println(status.Code(err))
	// Output: ResourceExhausted
}

func ExampleWithMessages() {
	messages := limiter.Policy{Name: "messages", Algorithm: limiter.TokenBucket, Limit: 60, Period: time.Minute, Burst: 2}
	user := func(*http.Request) (string, error) { return "alice", nil }
	limit := grpclimit.StreamServer(limiter.NewMemory(at), httplimit.Each(user, login), grpclimit.WithMessages(httplimit.Each(user, messages)))
	err := limit(nil, quiet{}, &grpc.StreamServerInfo{FullMethod: "/shop.Chat/Talk"}, func(_ any, stream grpc.ServerStream) error {
		for range 3 { // a real stream ends with io.EOF
			if err := stream.RecvMsg("a message"); err != nil {
				return err
			}
			fmt.Println("handled a message")
		}
		return nil
	})
	fmt.Println(status.Convert(err).Message())
	// Output:
	// handled a message
	// handled a message
	// pglimit: denied by messages (limit): retry after 1s
}

func ExampleWithNoKey() {
	limit := grpclimit.UnaryServer(limiter.NewMemory(at), httplimit.Each(httplimit.Header("X-Api-Key"), login), grpclimit.WithNoKey(httplimit.Pass))
	fmt.Println(limit(ctx, "without metadata", method, handler))
	// Output: done <nil>
}

func ExampleWithLogger() {
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	limits := func(*http.Request) ([]limiter.Request, error) { return nil, errors.New("no such plan") }
	_, err := grpclimit.UnaryServer(limiter.NewMemory(at), limits, grpclimit.WithLogger(logger))(ctx, nil, method, handler)
	fmt.Println(status.Convert(err).Message())
	// Output:
	// level=ERROR msg="grpclimit: no decision" since_last=1 error="no such plan"
	// the rate limit is not set up correctly
}

func ExampleFromContext() {
	l := limiter.NewMemory(at)
	limit := grpclimit.UnaryServer(l, httplimit.Each(func(*http.Request) (string, error) { return "alice", nil }, login))
	for range 2 {
		_, err := limit(ctx, nil, method, func(ctx context.Context, _ any) (any, error) {
			requests, all, _ := grpclimit.FromContext(ctx)
			fmt.Println("remaining:", all.PerRequest[0].Remaining)
			return l.Undo(ctx, requests[0].Policy, requests[0].Key, all.PerRequest[0]) // it cost nothing
		})
		fmt.Println(err)
	}
	// Output:
	// remaining: 0
	// <nil>
	// remaining: 0
	// <nil>
}

func ExampleMessage() {
	limits := func(r *http.Request) ([]limiter.Request, error) {
		bytes := len(grpclimit.Message(r.Context()).(string)) // a *pb.CreateRequest in a real service
		return []limiter.Request{limiter.PerMinute("bytes", 20).Request("all", float64(bytes))}, nil
	}
	limit := grpclimit.UnaryServer(limiter.NewMemory(at), limits)
	for range 2 {
		_, err := limit(ctx, "twelve bytes", method, handler)
		fmt.Println(status.Convert(err).Message())
	}
	// Output:
	//
	// pglimit: denied by bytes (limit): retry after 12s
}

func ExampleDeny() {
	l := limiter.NewMemory(at)
	create := func(ctx context.Context, cost float64) error { // a handler that decides itself
		r, err := l.AllowN(ctx, limiter.PerMinute("tokens", 100), "alice", cost)
		if err != nil {
			return status.Error(codes.Unavailable, "try again later")
		}
		return grpclimit.Deny(ctx, r.Err())
	}
	fmt.Println(create(ctx, 60))
	err := create(ctx, 60)
	fmt.Println(status.Code(err), err)
	// Output:
	// <nil>
	// ResourceExhausted pglimit: denied by tokens (limit): retry after 12s
}

func ExampleSetHeader() {
	l := limiter.NewMemory(at)
	r, _ := l.Allow(ctx, login, "alice")
	fmt.Println(grpclimit.SetHeader(ctx, r) != nil) // it needs the context of a server's handler
	// Output: true
}

func ExampleRetryAfter() {
	r, _ := limiter.NewMemory(at).AllowN(ctx, login, "alice", 1)
	fmt.Println(grpclimit.RetryAfter(grpclimit.Deny(ctx, r.Err()))) // allowed: no error
	fmt.Println(grpclimit.RetryAfter(grpclimit.Deny(ctx, &limiter.DeniedError{Result: limiter.Result{RetryAfter: 3 * time.Second}})))
	// Output:
	// 0s false
	// 3s true
}

func ExampleUnaryClient() {
	l := limiter.NewMemory(at)
	perTarget := func(r *http.Request) ([]limiter.Request, error) {
		return []limiter.Request{login.Request(r.URL.Hostname(), 1)}, nil
	}
	conn, err := grpc.NewClient("passthrough:///limits.example.com:443", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpclimit.UnaryClient(l, perTarget), func(_ context.Context, method string, _, _ any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
			fmt.Println("sent", method) // instead of a server
			return nil
		}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 2 {
		_, err := pb.NewTestServiceClient(conn).UnaryCall(ctx, &pb.SimpleRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// sent /grpc.testing.TestService/UnaryCall
	// OK
	// ResourceExhausted
}

func ExampleStreamClient() {
	limits := httplimit.Each(func(*http.Request) (string, error) { return "all", nil }, login)
	conn, err := grpc.NewClient("passthrough:///limits.example.com:443", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainStreamInterceptor(grpclimit.StreamClient(limiter.NewMemory(at), limits), func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, grpc.Streamer, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, nil // instead of a server
		}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 2 {
		_, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/shop.Orders/Watch")
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// ResourceExhausted
}
