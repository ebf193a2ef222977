package grpclimit

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/httplimit"
	"github.com/pglimit/pglimit/limiter"
)

// Deny answers a denied call as UnaryServer does, for a handler that decides itself: it sets the
// trailer and returns the error to return. It returns nil if err is no *limiter.DeniedError, nor
// wraps one. ctx is the handler's context.
//
//	r, err := l.Allow(ctx, policy, key)
//	if err == nil {
//		err = grpclimit.Deny(ctx, r.Err())
//	}
//
// The code is ResourceExhausted, with the details
//
//   - RetryInfo: the longest RetryAfter of the denied requests;
//   - QuotaFailure: the policies that denied, each as the subject of a violation. Keys are not
//     in it.
//
// The trailer has the fields of httplimit.SetHeader, and grpc-retry-pushback-ms: a client with a
// retry policy for RESOURCE_EXHAUSTED waits that long before it retries. If the request can
// never be granted (limiter.Never), there is no RetryInfo, and such a client does not retry.
func Deny(ctx context.Context, err error) error {
	f := denied(err)
	if f == nil {
		return nil
	}
	_ = grpc.SetTrailer(ctx, f.trailer) // fails outside of a server
	return f
}

// failure is an error with what its client sees.
type failure struct {
	error
	status  *status.Status
	trailer metadata.MD
}

func (f *failure) Unwrap() error              { return f.error }
func (f *failure) GRPCStatus() *status.Status { return f.status }

// denied returns nil if err is no denial.
func denied(err error) *failure {
	cause, ok := errors.AsType[*limiter.DeniedError](err)
	if !ok {
		return nil
	}
	results := cause.PerRequest
	if results == nil {
		results = []limiter.Result{cause.Result}
	}
	quota, retry := &errdetails.QuotaFailure{}, time.Duration(1) // a denial never suggests an immediate retry
	for _, r := range results {
		if !r.Allowed && r.Source != limiter.SourceSkipped {
			retry = max(retry, r.RetryAfter)
			quota.Violations = append(quota.Violations, &errdetails.QuotaFailure_Violation{Subject: r.Policy.Name, Description: r.Err().Error()})
		}
	}
	details, pushback := []protoadapt.MessageV1{quota}, int64(-1)
	if retry != limiter.Never {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(retry)})
	}
	if ms := int64(math.Ceil(float64(retry) / 1e6)); ms <= math.MaxInt32 { // clients parse 32 bits
		pushback = ms
	}
	s := status.New(codes.ResourceExhausted, cause.Error())
	if detailed, err := s.WithDetails(details...); err == nil { // names that no Policy has cannot be written
		s = detailed
	}
	trailer := fields(results)
	trailer.Set("grpc-retry-pushback-ms", strconv.FormatInt(pushback, 10))
	return &failure{err, s, trailer}
}

// SetHeader sets the fields of httplimit.SetHeader in the header of a call that passes, for a
// handler that decides itself. It returns the error of grpc.SetHeader.
//
//	ratelimit-policy: "login";q=5;w=60;pglimit-burst=10
//	ratelimit: "login";r=4;t=12
func SetHeader(ctx context.Context, results ...limiter.Result) error {
	return grpc.SetHeader(ctx, fields(results))
}

func fields(results []limiter.Result) metadata.MD {
	h, md := http.Header{}, metadata.MD{}
	httplimit.SetHeader(h, results...)
	for name, values := range h {
		md[strings.ToLower(name)] = values
	}
	return md
}

// RetryAfter returns the delay of the RetryInfo in the status of err, which a client got from a
// server or from UnaryClient. ok is false without one.
func RetryAfter(err error) (delay time.Duration, ok bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}

// fail returns the error of a call without a decision. requests is empty if limits failed.
func fail(ctx context.Context, requests []limiter.Request, err error) *failure {
	unstorable := func(r limiter.Request) bool {
		return len(r.Key) > 1024 || !utf8.ValidString(r.Key) || strings.IndexByte(r.Key, 0) >= 0
	}
	s := status.New(codes.Unavailable, "the rate limit cannot be checked now")
	switch {
	case ctx.Err() != nil:
		s = status.FromContextError(ctx.Err())
	case errors.Is(err, httplimit.ErrNoKey):
		s = status.New(codes.PermissionDenied, "the call has no key for the rate limit")
	case errors.Is(err, limiter.ErrInvalid) && slices.ContainsFunc(requests, unstorable):
		s = status.New(codes.InvalidArgument, "the call's key for the rate limit is too long, has a NUL byte or is not UTF-8")
	case len(requests) == 0, errors.Is(err, limiter.ErrInvalid), errors.Is(err, limiter.ErrUnsupported):
		s = status.New(codes.Internal, "the rate limit is not set up correctly")
	}
	return &failure{error: err, status: s}
}
