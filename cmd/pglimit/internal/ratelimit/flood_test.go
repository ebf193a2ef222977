package ratelimit

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/prompglimit"
)

// written counts bytes.
type written int

func (w *written) Write(p []byte) (int, error) { *w += written(len(p)); return len(p), nil }

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
			if _, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{d}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: name, Descriptors: []*rlcommon.RateLimitDescriptor{{}}}); err != nil {
			t.Fatal(err)
		}
		_, reported := s.reportHits(t.Context(), &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{descriptorOf("value", "report"+name)}})
		if _, err := q.answer(t.Context(), usage(0, 0, 1, "detailed", "quota"+name)); err != nil || reported != nil {
			t.Fatal(err, reported)
		}
	}
	kept := 0
	for name := range s.metrics.limits {
		kept += len(name)
	}
	for name := range s.metrics.unknown {
		kept += len(name)
	}
	for _, b := range q.buckets {
		kept += len(b.metric)
	}
	var scrape written
	if err := s.WriteMetrics(io.Writer(&scrape)); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(decided)
	families, err := registry.Gather()
	series := 0
	for _, f := range families {
		series += len(f.GetMetric())
	}
	t.Logf("%d limits, %d domains and %d series of policies; %d bytes of names, a scrape of %d", len(s.metrics.limits), len(s.metrics.unknown), series, kept, scrape)
	if n := max(len(s.metrics.limits), len(s.metrics.unknown)); err != nil || n > maxSeries+1 || series > 10_000 || kept > 8<<20 || scrape > 32<<20 {
		t.Errorf("more than the bounds, error %v", err)
	}
}
