package ratelimit

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/pglimit/pglimit/internal/must"
)

// TestCountersNeverFall: whatever clients send, no counter of the metrics falls, or rises by more
// than what can be counted.
func TestCountersNeverFall(t *testing.T) {
	t.Parallel()
	s := server(t, twoLimits, Options{NearLimit: 1})
	q := &stream{Server: s, buckets: map[string]*bucket{}}
	before := map[string]float64{}
	for _, n := range []*hitCount{&s.metrics.series("d.user").total, &s.metrics.series("d.bucket").over, &s.metrics.series("d.a:b").total} {
		n.Store(math.MaxUint64 - 5)
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		s.metrics.series("d.a_b").total.Add(1) // has the same labels
		n := uint64(1)<<random.IntN(65) - uint64(random.IntN(2))
		text := []string{"user=a", "bucket=", "counted=", "shadow=", "user=a@16777219", "q1="}[random.IntN(6)] + fmt.Sprintf("+%s%d", []string{"", "-"}[random.IntN(2)], n)
		ask(t, s, text)
		must.OK(s.reportHits(t.Context(), requestOf(t, text)))(t)
		must.OK(q.answer(t.Context(), usage(time.Second, n, math.MaxUint64-n/2, "user", "b")))(t)
		families := must.OK(s.Gather())(t)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				id, v := fmt.Sprint(f.GetName(), m.GetLabel()), m.GetCounter().GetValue()
				if last, has := before[id]; has && (v < last || v-last > 4*mostHits) {
					t.Fatalf("%s: %s went from %v to %v", text, id, last, v)
				}
				before[id] = v
			}
		}
	}
}

// TestMetrics checks the counts and their names.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := server(t, `
domain: d
descriptors:
- key: user
  detailed_metric: true
  rate_limit: {unit: minute, requests_per_unit: 10}
- key: shadow
  shadow_mode: true
  descriptors:
  - key: deep
    descriptors:
    - key: deeper
      rate_limit: {unit: minute, requests_per_unit: 1}
`, Options{CountEach: true})
	ask(t, s, "user=10.0.0.1+7") // 7
	ask(t, s, "user=10.0.0.1+2") // 9: one near
	ask(t, s, "user=10.0.0.1+3") // 12: one more near, two over
	ask(t, s, "user=10.0.0.1+2") // two over
	ask(t, s, `user=a"b\c:d`)    // other labels
	s.SetConfig(s.Config(), nil)
	s.SetConfig(nil, errors.New("bad"))
	_, _ = s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{Domain: "other", Descriptors: []*rlcommon.RateLimitDescriptor{{}}})
	_, _ = s.ShouldRateLimit(t.Context(), &pb.RateLimitRequest{})
	var out strings.Builder
	must.Succeed(t, s.WriteMetrics(&out))
	for _, want := range []string{
		`rate_limit_total_hits{domain="d",key1="user_10_0_0_1"} 14`,
		`rate_limit_within_limit{domain="d",key1="user_10_0_0_1"} 9`,
		`rate_limit_near_limit{domain="d",key1="user_10_0_0_1"} 2`,
		`rate_limit_over_limit{domain="d",key1="user_10_0_0_1"} 4`,
		`rate_limit_total_hits{domain="d",key1="user_a\"b\\c_d"} 1`,
		`rate_limit_domain_not_found{domain="other"} 1`,
		`config_load_success 1`,
		`config_load_error 1`,
		`should_rate_limit_error{err_type="service_error"} 1`,
		`should_rate_limit_error{err_type="redis_error"} 0`,
		`total_requests{grpc_method="ShouldRateLimit"} 7`,
		`response_time_seconds_count{grpc_method="ShouldRateLimit"} 7`,
		`response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 7`,
	} {
		if !strings.Contains(out.String(), "\nratelimit_service_"+want+"\n") {
			t.Errorf("no %s in\n%s", want, &out)
		}
	}
	if got := labels("d.a.b.c"); got != `domain="d",key1="a",key2="b"` {
		t.Errorf("labels %s", got)
	}
	for i := range maxSeries + 10 {
		s.metrics.series(fmt.Sprint("d.", i))
	}
	if n := len(s.metrics.limits); n > maxSeries+1 {
		t.Errorf("%d limits are counted apart, want at most %d", n, maxSeries+1)
	}
}
