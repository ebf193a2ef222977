package ratelimit

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unsafe"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/strictyaml"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/prompglimit"
)

// TestMadeUpNames makes up many names, and names of 1 MB, wherever a request can name something
// that metrics have: neither the number of series nor their bytes grow beyond a bound.
func TestMadeUpNames(t *testing.T) {
	t.Parallel()
	decided := prompglimit.New(nil)
	s := NewServer(limiter.NewMemory(&limiter.Config{Observe: decided.Observe}), mustConfig(t, `
domain: d
descriptors:
- {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: value, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: any*, rate_limit: {unit: day, requests_per_unit: 9}}
`), Options{Logger: slog.New(slog.DiscardHandler)})
	q := &stream{Server: s, buckets: map[string]*bucket{}}
	own := func(key, value string) *rlcommon.RateLimitDescriptor {
		d := descriptorOf(key, value)
		d.Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_DAY, RequestsPerUnit: 9}
		return d
	}
	long := strings.Repeat("x", 1<<20)
	for i := range maxSeries + 10 {
		name := fmt.Sprint("n", i)
		if i%1000 == 0 {
			name += long
		}
		for _, d := range []*rlcommon.RateLimitDescriptor{
			descriptorOf("detailed", name), descriptorOf("value", name), descriptorOf("any"+name, ""), own(name, ""), own("own", name),
		} {
			must.OK(s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{d}}))(t)
		}
		must.OK(s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: name, Descriptors: []*rlcommon.RateLimitDescriptor{{}}}))(t)
		_, reported := s.reportHits(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{descriptorOf("value", "report"+name)}})
		if _, err := q.answer(t.Context(), usage(0, 0, 1, "detailed", "quota"+name)); err != nil || reported != nil {
			t.Fatal(err, reported)
		}
	}
	kept := len(strings.Join(slices.Concat(slices.Collect(maps.Keys(s.metrics.limits)), slices.Collect(maps.Keys(s.metrics.unknown))), ""))
	for _, b := range q.buckets {
		kept += len(b.metric)
	}
	var scrape strings.Builder
	_ = s.WriteMetrics(&scrape) // never fails
	registry := prometheus.NewRegistry()
	registry.MustRegister(decided)
	families, err := registry.Gather()
	series := 0
	for _, f := range families {
		series += len(f.GetMetric())
	}
	t.Logf("%d limits, %d domains and %d series of policies; %d bytes of names, a scrape of %d", len(s.metrics.limits), len(s.metrics.unknown), series, kept, scrape.Len())
	if n := max(len(s.metrics.limits), len(s.metrics.unknown)); err != nil || n > maxSeries+1 || series > 10_000 || kept > 8<<20 || scrape.Len() > 32<<20 {
		t.Errorf("more than the bounds, error %v", err)
	}
}

// TestBoundsOfRequests: a request with more entries than a limit can have, and one whose caller has
// left, end before their names are joined. A quota with many entries is abandoned.
func TestBoundsOfRequests(t *testing.T) { // not parallel, as it counts allocations
	s := server(t, quotas, Options{})
	many := make([]string, 0, 2*100_000)
	for i := range cap(many) / 2 {
		many = append(many, fmt.Sprint("k", i), "v")
	}
	request := &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{descriptorOf("user", "a"), descriptorOf(many...)}}
	request.Descriptors[1].Limit = &rlcommon.RateLimitDescriptor_RateLimitOverride{Unit: typev3.RateLimitUnit_DAY, RequestsPerUnit: 9}
	if _, err := s.ShouldRateLimit(t.Context(), request); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "descriptors[1].entries: there are 100000, and must be at most 50") {
		t.Errorf("100,000 entries: error %.200v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request.Descriptors = slices.Repeat([]*rlcommon.RateLimitDescriptor{descriptorOf("user", "")}, maxDescriptors)
	if _, err := s.match(ctx, request); status.Code(err) != codes.Canceled {
		t.Errorf("a caller that left: error %v, want Canceled", err)
	}
	q := &stream{Server: s, buckets: map[string]*bucket{}}
	report := usage(0, 0, 1, many...)
	var r *quotapb.RateLimitQuotaResponse
	var err error
	if n := testing.AllocsPerRun(1, func() { r, err = q.answer(t.Context(), report) }); err != nil || actions(r) != "abandon" || n > 100 {
		t.Errorf("a quota with 100,000 entries: %q, error %v, %v allocations", actions(r), err, n)
	}
}

// TestQuotasAreBounded: streams share a bound on buckets, give them back at their end, and keep
// little of long ids. What a client used of a bucket that is not kept is counted.
func TestQuotasAreBounded(t *testing.T) {
	t.Parallel()
	s := server(t, strings.Replace(quotas, "requests_per_unit: 100", "requests_per_unit: 5", 1), Options{})
	const room = 100
	s.buckets.Store(allBuckets - room) // of other streams
	var all []*stream
	buckets, bytes := 0, 0
	for range 3 {
		q := &stream{Server: s, buckets: map[string]*bucket{}}
		for n := range room / 2 {
			must.OK(q.answer(t.Context(), usage(0, 0, 1, "user", fmt.Sprint(n, strings.Repeat("x", 3000)))))(t)
		}
		for name, b := range q.buckets {
			bytes += len(name) + len(b.key) + len(b.metric) + int(unsafe.Sizeof(*b))
		}
		buckets += len(q.buckets)
		all = append(all, q)
	}
	t.Logf("%d buckets of %d bytes", buckets, bytes)
	if buckets > room || bytes > room<<11 {
		t.Errorf("want at most %d buckets of 2 kB", room)
	}
	r, err := all[len(all)-1].answer(t.Context(), usage(0, 5000, 0, "user", "a"))
	at, failed := s.limiter.Check(t.Context(), s.Config().domains["d"].children["user"].limit.policy, "a", 0)
	if actions(r) != "abandon" || err != nil || failed != nil || at.Level != 5 {
		t.Errorf("5,000 requests of a bucket that is not kept: %q, error %v; %v of 5 counted, error %v", actions(r), err, at.Level, failed)
	}
	for _, q := range all {
		q.end()
	}
	if n := s.buckets.Load(); n != allBuckets-room {
		t.Errorf("%d buckets are counted after the streams, want %d", n, allBuckets-room)
	}
}

// TestQuotaHandlerLeaves: the handler of a stream ends with its context, also if that ends while
// a report is passed on.
func TestQuotaHandlerLeaves(t *testing.T) {
	t.Parallel()
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			p := &pipe{ctx: ctx, up: make(chan *quotapb.RateLimitQuotaUsageReports, 1), later: make(chan *quotapb.RateLimitQuotaResponse)}
			p.up <- usage(0, 0, 1, "user", "a")
			cancel()
			if err := server(t, quotas, Options{}).StreamRateLimitQuotas(p); err == nil {
				t.Error("no error")
			}
		})
	}
}

// TestBoundsOfConfigurations: neither depth nor faults multiply the work or the text of errors.
func TestBoundsOfConfigurations(t *testing.T) {
	t.Parallel()
	deep := &rlsconf.RateLimitDescriptor{Key: "k"}
	for range 2000 {
		deep = &rlsconf.RateLimitDescriptor{Key: "k", Descriptors: []*rlsconf.RateLimitDescriptor{deep}}
	}
	_, err := NewConfig(false, FromProto(&rlsconf.RateLimitConfig{Name: "x", Domain: "d", Descriptors: []*rlsconf.RateLimitDescriptor{deep}}))
	if err == nil || !strings.Contains(err.Error(), "descriptors: are more than 50 levels deep") || len(err.Error()) > 10_000 {
		t.Errorf("2,000 levels: error %.300v", err)
	}
	wide := &rlsconf.RateLimitConfig{Name: "x", Domain: "d", Descriptors: slices.Repeat([]*rlsconf.RateLimitDescriptor{{}}, 100_000)}
	_, ofXDS := NewConfig(false, FromProto(wide))
	_, ofYAML := Parse("f.yaml", []byte("domain: d\ndescriptors:\n"+strings.Repeat("- {keys: k, rate_limit: {unit: x, units: 1}}\n", 100_000)))
	for _, err := range []error{ofXDS, ofYAML} {
		if err == nil || strings.Count(err.Error(), "\n") != strictyaml.MaxFaults || !strings.HasSuffix(err.Error(), "more than 100 faults: correct those first") {
			t.Errorf("100,000 faults: an error of %d lines that begins %.300v", strings.Count(fmt.Sprint(err), "\n")+1, err)
		}
	}
}
