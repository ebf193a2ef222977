package grpclimit_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/grpclimit"
	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// answer is what a client sees of a call.
type answer struct {
	code     codes.Code
	retry    time.Duration // 0 without a RetryInfo
	violated []string
	text     string // of the status
}

func seen(err error) (a answer) {
	s := status.Convert(err)
	a.code, a.text = s.Code(), s.Message()
	a.retry, _ = grpclimit.RetryAfter(err)
	for _, d := range s.Details() {
		if quota, ok := d.(*errdetails.QuotaFailure); ok {
			for _, v := range quota.GetViolations() {
				a.violated = append(a.violated, v.GetSubject())
				a.text += v.GetDescription()
			}
		}
	}
	return a
}

// open opens a stream, sends a message, reads its answer and ends the stream.
func open(ctx context.Context, client pb.TestServiceClient, opts ...grpc.CallOption) error {
	stream, err := client.FullDuplexCall(ctx, opts...)
	if err == nil {
		err = stream.Send(&pb.StreamingOutputCallRequest{})
	}
	if err == nil || err == io.EOF {
		_, err = stream.Recv()
	}
	if err == nil {
		err = stream.CloseSend()
	}
	if err == nil {
		if _, err = stream.Recv(); err == io.EOF {
			err = nil
		}
	}
	return err
}

// TestServer: unary calls and streams get the same code, details and fields, and only what is
// granted reaches the handler.
func TestServer(t *testing.T) {
	t.Parallel()
	broken := errors.New("the plan of secret-key is unknown")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	closed := memory()
	closed.Close()
	const unchecked = "the rate limit cannot be checked now"
	for _, c := range []struct {
		name   string
		limits httplimit.Limits
		opts   []grpclimit.Option
		l      *limiter.Limiter // default: a new one, with two units of hourly used by "full"
		ctx    context.Context
		want   answer
		fields string // of the header of what passes, of the trailer of what is denied
		more   string // the description of another violation
		late   bool   // the time to retry after depends on the deadline
	}{
		{name: "granted", limits: fixed(hourly.Request("k", 1)), fields: `ratelimit="calls";r=1;t=3600 ratelimit-policy="calls";q=2;w=3600`},
		{name: "denied", limits: fixed(hourly.Request("full", 1)), want: answer{codes.ResourceExhausted, time.Hour, []string{"calls"}, "pglimit: denied by calls (limit): retry after 1h"},
			fields: `grpc-retry-pushback-ms=3600000 ratelimit="calls";r=0;t=3600 ratelimit-policy="calls";q=2;w=3600 retry-after=3600`},
		{name: "one of several denied", limits: fixed(wide.Request("full", 1), hourly.Request("full", 1)), want: answer{codes.ResourceExhausted, time.Hour, []string{"calls"}, "pglimit: denied by calls (limit): retry after 1h"},
			fields: `grpc-retry-pushback-ms=3600000 ratelimit="wide";r=5;t=0, "calls";r=0;t=3600 ratelimit-policy="wide";q=5;w=3600, "calls";q=2;w=3600 retry-after=3600`},
		{name: "two denied", limits: fixed(hourly.Request("full", 1), minutely.Request("full", 1)), want: answer{codes.ResourceExhausted, time.Hour, []string{"calls", "minutely"},
			"pglimit: denied by calls (limit): retry after 1h"}, more: "pglimit: denied by minutely (limit): retry after 1m",
			fields: `grpc-retry-pushback-ms=3600000 ratelimit="calls";r=0;t=3600, "minutely";r=0;t=60 ratelimit-policy="calls";q=2;w=3600, "minutely";q=1;w=60 retry-after=3600`},
		{name: "above the burst", limits: fixed(hourly.Request("k", 3)), want: answer{codes.ResourceExhausted, 0, []string{"calls"}, "pglimit: denied by calls: the cost is more than the limit ever allows"},
			fields: `grpc-retry-pushback-ms=-1 ratelimit="calls";r=2 ratelimit-policy="calls";q=2;w=3600`},
		{name: "no requests", limits: fixed()},
		{name: "no key", limits: failing(httplimit.ErrNoKey), want: answer{code: codes.PermissionDenied, text: "the call has no key for the rate limit"}},
		{name: "no key passes", limits: failing(httplimit.ErrNoKey), opts: []grpclimit.Option{grpclimit.WithNoKey(httplimit.Pass)}},
		{name: "limits fails", limits: failing(broken), want: answer{code: codes.Internal, text: "the rate limit is not set up correctly"}},
		{name: "invalid", limits: fixed(hourly.Request("k", 0)), want: answer{code: codes.Internal, text: "the rate limit is not set up correctly"}},
		{name: "a key of the client", limits: fixed(hourly.Request("a\x00b", 1)), want: answer{code: codes.InvalidArgument, text: "the call's key for the rate limit is too long, has a NUL byte or is not UTF-8"}},
		{name: "no decision", l: closed, limits: fixed(hourly.Request("k", 1)), want: answer{code: codes.Unavailable, text: unchecked}},
		{name: "a turn too late", limits: fixed(lane.Request("full", 1)), want: answer{code: codes.ResourceExhausted, violated: []string{"lane"}}, late: true},
		{name: "cancelled", limits: fixed(hourly.Request("k", 1)), ctx: cancelled, want: answer{code: codes.Canceled, text: "context canceled"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for kind, call := range map[string]func(context.Context, pb.TestServiceClient, ...grpc.CallOption) error{
				"unary": func(ctx context.Context, client pb.TestServiceClient, opts ...grpc.CallOption) error {
					_, err := client.UnaryCall(ctx, &pb.SimpleRequest{}, opts...)
					return err
				},
				"stream": open,
			} {
				l := cmp.Or(c.l, usedByFull(t))
				s, ctx := &service{}, c.ctx
				client := serve(t, s, l, c.limits, append(c.opts, grpclimit.WithLogger(slog.New(slog.DiscardHandler))))
				if ctx == nil {
					minute, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					ctx = minute
				}
				var header, trailer metadata.MD
				err := call(ctx, client, grpc.Header(&header), grpc.Trailer(&trailer))
				got, want := seen(err), c.want
				if len(want.violated) > 0 { // and the violation's description
					want.text += want.text + c.more
				}
				if c.late { // by the deadline
					got.retry, got.text = want.retry, want.text
				}
				if got.code != want.code || got.retry != want.retry || !slices.Equal(got.violated, want.violated) || got.text != want.text {
					t.Errorf("%s: got %+v, want %+v", kind, got, want)
				}
				passed := want.code == codes.OK
				if reached := s.calls.Load()+s.opened.Load() == 1; reached != passed {
					t.Errorf("%s: the handler was called: %v", kind, reached)
				}
				fields := header
				if !passed {
					fields = trailer
				}
				if got := lines(fields); got != c.fields && !c.late {
					t.Errorf("%s: the fields are\n%s, want\n%s", kind, got, c.fields)
				}
			}
		})
	}
}

// usedByFull returns a limiter in which the key "full" has used some limits up.
func usedByFull(t *testing.T) *limiter.Limiter {
	t.Helper()
	l := memory()
	for _, r := range []limiter.Request{hourly.Request("full", 2), lane.Request("full", 1), minutely.Request("full", 1)} {
		if r, err := l.Do(t.Context(), r); err != nil || !r.Allowed {
			t.Fatal(r, err)
		}
	}
	return l
}

// lines returns the limit's fields, sorted by name.
func lines(md metadata.MD) string {
	var all []string
	for _, name := range []string{"grpc-retry-pushback-ms", "ratelimit", "ratelimit-policy", "retry-after"} {
		if values := md[name]; values != nil {
			all = append(all, name+"="+strings.Join(values, "|"))
		}
	}
	return strings.Join(all, " ")
}

// TestServerKeys: the key comes from the metadata or the peer, and entries that a client writes
// into X-Forwarded-For count only behind trusted proxies.
func TestServerKeys(t *testing.T) {
	t.Parallel()
	const forwarded = "203.0.113.9, 198.51.100.7"
	for _, c := range []struct {
		name string
		key  httplimit.Key
		want string // or "" for none
	}{
		{"metadata", httplimit.Header("X-Api-Key"), "k1"},
		{"other metadata", httplimit.Header("x-other"), ""},
		{"peer", httplimit.Address{}.Key, "127.0.0.1"},
		{"behind a proxy", httplimit.Address{Hops: 1}.Key, "198.51.100.7"},
		{"method", func(r *http.Request) (string, error) { return r.URL.Path, nil }, unaryMethod},
		{"message", func(r *http.Request) (string, error) {
			return string(grpclimit.Message(r.Context()).(*pb.SimpleRequest).GetPayload().GetBody()), nil
		}, "of the message"},
	} {
		var got string
		key := func(r *http.Request) (string, error) {
			k, err := c.key(r)
			got = k
			if host, _, _ := strings.Cut(r.Host, ":"); host != "127.0.0.1" || r.Method != "POST" {
				t.Errorf("%s: the request is %s to %s", c.name, r.Method, r.Host)
			}
			return k, err
		}
		client := serve(t, &service{}, memory(), httplimit.Each(key, hourly), nil)
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "k1", "x-forwarded-for", forwarded)
		_, err := client.UnaryCall(ctx, &pb.SimpleRequest{Payload: &pb.Payload{Body: []byte("of the message")}})
		if got != c.want || (status.Code(err) == codes.OK) != (c.want != "") {
			t.Errorf("%s: the key is %q, %v, want %q", c.name, got, err, c.want)
		}
	}
}

// TestServerKeysApart: calls count for their own key and method only, and a client sees the key
// nowhere.
func TestServerKeysApart(t *testing.T) {
	t.Parallel()
	limits := httplimit.Each(httplimit.Join(httplimit.Header("x-api-key"), func(r *http.Request) (string, error) { return r.URL.Path, nil }), hourly)
	client := serve(t, &service{}, memory(), limits, nil)
	call := func(key string) error {
		_, err := client.UnaryCall(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", key), &pb.SimpleRequest{})
		return err
	}
	for range 2 {
		must.Succeed(t, call("secret-1"))
	}
	err := call("secret-1")
	if got := seen(err); got.code != codes.ResourceExhausted || strings.Contains(got.text, "secret") {
		t.Errorf("the third call got %+v", got)
	}
	if err := call("secret-2"); err != nil {
		t.Errorf("the first call of another key got %v", err)
	}
	if err := open(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "secret-1"), client); err != nil {
		t.Errorf("the first call of another method got %v", err)
	}
}

// TestServerMessages: each message counts, and a denied one ends the stream before the handler
// sees it.
func TestServerMessages(t *testing.T) {
	t.Parallel()
	l, s := memory(), &service{}
	var costs []string
	messages := func(r *http.Request) ([]limiter.Request, error) {
		costs = append(costs, string(grpclimit.Message(r.Context()).(*pb.StreamingOutputCallRequest).GetPayload().GetBody()))
		return []limiter.Request{hourly.Request("messages", 1)}, nil
	}
	client := serve(t, s, l, fixed(wide.Request("opened", 1)), []grpclimit.Option{grpclimit.WithMessages(messages)})
	var trailer metadata.MD
	stream := must.OK(client.FullDuplexCall(t.Context(), grpc.Trailer(&trailer)))(t)
	for i := range 3 {
		must.Succeed(t, stream.Send(&pb.StreamingOutputCallRequest{Payload: &pb.Payload{Body: []byte{byte('a' + i)}}}))
		_, err := stream.Recv()
		if want := []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted}[i]; status.Code(err) != want {
			t.Fatalf("message %d got %v, want %v", i, err, want)
		}
		if retry, _ := grpclimit.RetryAfter(err); i == 2 && (retry != time.Hour || trailer.Get("retry-after")[0] != "3600") {
			t.Errorf("the denied message has RetryInfo %v and trailer %v", retry, trailer)
		}
	}
	if got := s.messages.Load(); got != 2 || level(t, l, wide, "opened") != 1 || !slices.Equal(costs, []string{"a", "b", "c"}) {
		t.Errorf("the handler got %d messages, opened %v, limits saw %q", got, level(t, l, wide, "opened"), costs)
	}
	header, err := stream.Header()
	if got := lines(header); err != nil || got != `ratelimit="wide";r=4;t=3600 ratelimit-policy="wide";q=5;w=3600` {
		t.Errorf("the stream's header is %s, %v, want that of its opening", got, err)
	}
}

// TestServerFromContext: handlers see the decision and can give units back; calls without
// limits have none.
func TestServerFromContext(t *testing.T) {
	t.Parallel()
	l := memory()
	s := &service{during: func(ctx context.Context) error {
		requests, all, ok := grpclimit.FromContext(ctx)
		if !ok || len(requests) != 1 || requests[0].Key != "k" || all.PerRequest[0].Remaining != 1 {
			t.Errorf("FromContext: %+v, %+v, %v", requests, all, ok)
		}
		_, err := l.Undo(ctx, requests[0].Policy, requests[0].Key, all.PerRequest[0])
		return err
	}}
	client := serve(t, s, l, fixed(hourly.Request("k", 1)), nil)
	for range 3 {
		if _, err := client.UnaryCall(t.Context(), &pb.SimpleRequest{}); err != nil {
			t.Error(err)
		}
	}
	if _, all, ok := grpclimit.FromContext(t.Context()); ok || all.DeniedBy != -1 {
		t.Errorf("without a decision: %+v, %v", all, ok)
	}
}

// TestServerLog: the cause is logged and wrapped, and a client does not see it.
func TestServerLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cause := errors.New("the plan of secret-key is unknown" + strings.Repeat("x", 2000))
	for _, c := range []struct {
		ctx    context.Context
		limits httplimit.Limits
		code   codes.Code
		is     error
		logged string
	}{
		{t.Context(), failing(cause), codes.Internal, cause, "level=ERROR"},
		{t.Context(), fixed(hourly.Request("a\x00b", 1)), codes.InvalidArgument, limiter.ErrInvalid, "level=WARN"},
		{t.Context(), fixed(hourly.Request("k", 1), hourly.Request("k", 1)), codes.Unavailable, limiter.ErrClosed, "level=WARN"},
		{t.Context(), failing(httplimit.ErrNoKey), codes.PermissionDenied, httplimit.ErrNoKey, ""},
		{t.Context(), fixed(hourly.Request("k", 3)), codes.ResourceExhausted, nil, ""},
		{ended, fixed(hourly.Request("k", 1)), codes.Canceled, context.Canceled, ""},
	} {
		l := memory()
		if c.is == limiter.ErrClosed {
			l.Close()
		}
		log.Reset()
		intercept := grpclimit.UnaryServer(l, c.limits, grpclimit.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 2 {
			_, err := intercept(c.ctx, nil, &grpc.UnaryServerInfo{FullMethod: unaryMethod}, nil)
			var denied *limiter.DeniedError
			if got := seen(err); got.code != c.code || c.is != nil && !errors.Is(err, c.is) || c.is == nil && !errors.As(err, &denied) || strings.Contains(got.text, "secret-key") {
				t.Errorf("the error is %v, and clients see %+v", err, got)
			}
		}
		if got := log.String(); !strings.Contains(got, c.logged) || (c.logged == "") != (got == "") || strings.Count(got, "\n") > 1 || len(got) > 1500 {
			t.Errorf("logged %q, want one line with %q", got, c.logged)
		}
	}
}

// TestRequired: missing arguments panic when the server is set up.
func TestRequired(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(){
		"grpclimit: UnaryServer: the limiter is nil":   func() { grpclimit.UnaryServer(nil, fixed()) },
		"grpclimit: StreamServer: limits is nil":       func() { grpclimit.StreamServer(memory(), nil) },
		"grpclimit: UnaryClient: limits is nil":        func() { grpclimit.UnaryClient(memory(), nil) },
		"grpclimit: StreamClient: the limiter is nil":  func() { grpclimit.StreamClient(nil, fixed()) },
		"grpclimit: WithNoKey: must be Refuse or Pass": func() { grpclimit.WithNoKey(2) },
		"grpclimit: UnarySlots: slot is nil":           func() { grpclimit.UnarySlots(memory(), nil) },
		"grpclimit: StreamSlots: the limiter is nil":   func() { grpclimit.StreamSlots(nil, slotOf) },
	} {
		func() {
			defer func() {
				if got := recover(); got != name {
					t.Errorf("got %v, want %s", got, name)
				}
			}()
			f()
		}()
	}
}

// TestDenyUnwritable: a denial under a name that protocol buffers cannot hold is a denial without
// details, not a panic.
func TestDenyUnwritable(t *testing.T) {
	t.Parallel()
	r := limiter.Result{Policy: limiter.Policy{Name: "\xff"}, Reason: limiter.ReasonLimit, RetryAfter: time.Second}
	if err := grpclimit.Deny(t.Context(), r.Err()); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
}
