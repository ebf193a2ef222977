package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/limiter"
)

// TestErrors checks the codes of requests without a decision. They do not say where the database
// is; the log says it once a minute.
func TestErrors(t *testing.T) {
	t.Parallel()
	user := []*rlcommon.RateLimitDescriptor{descriptorOf("user", "a")}
	for _, c := range []struct {
		name    string
		request *pb.RateLimitRequest
		err     error // of the limiter
		none    bool  // no configuration
		want    codes.Code
	}{
		{"no domain", &pb.RateLimitRequest{Descriptors: user}, nil, false, codes.InvalidArgument},
		{"no descriptors", &pb.RateLimitRequest{Domain: "d"}, nil, false, codes.InvalidArgument},
		{"an empty descriptor", &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{{}}}, nil, false, codes.OK},
		{"another domain", &pb.RateLimitRequest{Domain: "e", Descriptors: user}, nil, false, codes.OK},
		{"no configuration", &pb.RateLimitRequest{Domain: "d", Descriptors: user}, nil, true, codes.Unavailable},
		{"no database", &pb.RateLimitRequest{Domain: "d", Descriptors: user}, limiter.ErrUnavailable, false, codes.Unavailable},
		{"overload", &pb.RateLimitRequest{Domain: "d", Descriptors: user}, limiter.ErrOverloaded, false, codes.ResourceExhausted},
		{"a missing right", &pb.RateLimitRequest{Domain: "d", Descriptors: user}, limiter.ErrMisconfigured, false, codes.FailedPrecondition},
		{"a fault of ours", &pb.RateLimitRequest{Domain: "d", Descriptors: user}, errors.New("fault"), false, codes.Unavailable},
	} {
		var log strings.Builder
		s := server(t, twoLimits, Options{})
		s.options.Logger = slog.New(slog.NewTextHandler(&log, nil))
		if c.err != nil {
			s.limiter = failing{s.limiter, fmt.Errorf("%w: connect to host=db.internal user=app", c.err)}
		}
		if c.none {
			s.config.Store(nil)
		}
		for range 3 {
			if _, err := s.ShouldRateLimit(t.Context(), c.request); status.Code(err) != c.want || err != nil && strings.Contains(err.Error(), "internal") {
				t.Errorf("%s: error %v, want %v", c.name, err, c.want)
			}
		}
		if n := strings.Count(log.String(), "db.internal"); (n == 1) != (c.err != nil) {
			t.Errorf("%s: it is logged %d times: %s", c.name, n, &log)
		}
	}
	s := server(t, twoLimits, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "d", Descriptors: user}); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that left: error %v, want Canceled", err)
	}
}

// failing fails if err is not nil.
type failing struct {
	Limiter
	err error
}

func (f failing) Do(ctx context.Context, r limiter.Request) (limiter.Result, error) {
	if f.err != nil {
		return limiter.Result{}, f.err
	}
	return f.Limiter.Do(ctx, r)
}

func (f failing) Check(context.Context, limiter.Policy, string, float64) (limiter.Result, error) {
	return limiter.Result{}, f.err
}

func (f failing) Refund(context.Context, limiter.Policy, string, float64) (limiter.Result, error) {
	return limiter.Result{}, f.err
}

// TestDecidedLimitsStand: an error after a decision does not cost it. The limiter has a place for
// one key, and then fails.
func TestDecidedLimitsStand(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		request, want string // want: empty for an error
		shadow        bool
	}{
		{"user=a+9 user=b+1 all=+0", "OVER OVER:0/3 OK:0 OK:0", false},
		{"user=a+1 user=b+1 all=+0", "", false},
		{"user=a+9 bucket=+1 all=", "OVER OVER:0/3 OK:0 OK:0", false},
		{"user=a+1 bucket=+9", "OVER OK:2/3 OVER:4/60", false}, // which is not charged
		{"user=a+1 all=", "", false},
		{"user=a shadow=", "OK OK:2/3 OK:0", false},
		{"user=a q2=", "", false},
		{"user=a all=", "OK OK:2/3 OK:0", true},
	} {
		s := server(t, twoLimits, Options{Shadow: c.shadow})
		s.limiter = limiter.NewMemory(&limiter.Config{Now: s.options.Now, MaxKeys: 1})
		r, err := s.ShouldRateLimit(t.Context(), requestOf(t, strings.Fields(c.request)...))
		if (err == nil) != (c.want != "") || err == nil && brief(r) != c.want {
			t.Errorf("%s: %s, error %v; want %s", c.request, brief(r), err, c.want)
		}
	}
	s := server(t, twoLimits, Options{})
	s.limiter = failing{s.limiter, limiter.ErrUnavailable}
	if r, err := s.checkRateLimit(t.Context(), requestOf(t, "none=", "user=b")); err != nil || brief(r) != "OVER OVER:0/0 OK:0" {
		t.Errorf("CheckRateLimit: %s, error %v", brief(r), err)
	}
	if got := brief(ask(t, s, "none=", "user=b+-1")); got != "OVER OVER:0/0 OK:0" {
		t.Errorf("a refund: %s", got)
	}
}
