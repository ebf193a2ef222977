package ratelimit

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pglimit/pglimit/limiter"
)

// Clients choose some names of limits and domains. At most maxSeries of each, of at most maxName
// bytes, are counted apart. All others are counted together as otherNames.
const (
	maxSeries, maxName = 10_000, 256
	otherNames         = "other.other"
)

// bounded returns a name, or otherNames if it is too long.
func bounded(name string) string {
	if len(name) > maxName {
		return otherNames
	}
	return name
}

// metrics counts what envoyproxy/ratelimit counts.
type metrics struct {
	configLoads, configErrors, serviceErrors, databaseErrors, shadowed atomic.Uint64

	mu      sync.RWMutex
	limits  map[string]*series // by the metric's name
	unknown map[string]uint64  // by domain

	times     [len(buckets) + 1]atomic.Uint64 // of requests, by the first bucket that has them
	timeTotal atomic.Int64                    // nanoseconds
}

// series counts hits under one limit.
type series struct{ total, over, near, cached, within, shadow hitCount }

// hitCount is a count that never falls.
type hitCount struct{ atomic.Uint64 }

// Add adds n, as far as the count goes.
func (c *hitCount) Add(n uint64) {
	for old := c.Load(); !c.CompareAndSwap(old, old+min(n, math.MaxUint64-old)); old = c.Load() {
	}
}

// buckets are the upper bounds of response times in seconds.
var buckets = [...]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// timed counts a request that began at a time and has ended.
func (m *metrics) timed(began time.Time) {
	took := time.Since(began)
	i, _ := slices.BinarySearch(buckets[:], took.Seconds())
	m.times[i].Add(1)
	m.timeTotal.Add(int64(took))
}

// overflow returns name, or otherNames if it is too long or there are too many.
func overflow[T any](known map[string]T, name string) string {
	if _, ok := known[name]; !ok && len(known) >= maxSeries {
		return otherNames
	}
	return bounded(name)
}

func (m *metrics) unknownDomain(domain string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unknown == nil {
		m.unknown = map[string]uint64{}
	}
	m.unknown[overflow(m.unknown, domain)]++
}

func (m *metrics) series(path string) *series {
	m.mu.RLock()
	s := m.limits[path]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limits == nil {
		m.limits = map[string]*series{}
	}
	path = overflow(m.limits, path)
	if m.limits[path] == nil {
		m.limits[path] = &series{}
	}
	return m.limits[path]
}

// account counts the hits of a decided descriptor. Of hits that go past the limit, those before
// it are near the limit and the rest over it.
func (s *Server) account(a *asked) {
	if a.limit == nil || a.negative {
		return
	}
	c := s.metrics.series(a.metric)
	c.total.Add(a.hits)
	if !a.known {
		return
	}
	if a.over && a.result.Source == limiter.SourceCache {
		c.over.Add(a.hits)
		c.cached.Add(a.hits)
		return
	}
	limit := uint64(a.ceiling(a.policy.Limit))
	if a.result.Burst > 0 {
		limit = uint64(a.ceiling(a.result.Burst))
	}
	after := uint64(a.result.Level)
	if !a.counted {
		after += a.hits
	}
	before := after - min(after, a.hits)
	near := min(limit, uint64(math.Floor(float64(float32(limit)*s.options.NearLimit)))) // a float32 may be above it
	past := a.hits
	switch {
	case a.over:
		if before < limit {
			past = max(after, limit) - limit
			c.near.Add(limit - max(near, before))
		}
		c.over.Add(past)
		if a.shadow {
			c.shadow.Add(past)
		}
		return
	case before >= near && after > near:
		c.near.Add(a.hits)
	case after > near:
		c.near.Add(after - near)
	}
	c.within.Add(a.hits)
}

var (
	separators = strings.NewReplacer(":", "_", "|", "_")
	address    = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)
)

// labels returns the labels of a limit: the domain and the first two descriptors of its path.
func labels(path string) string {
	path = address.ReplaceAllStringFunc(separators.Replace(path), func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
	names, text := [...]string{"domain", "key1", "key2"}, ""
	for i, part := range strings.SplitN(path, ".", len(names)+1) {
		if i < len(names) {
			text += fmt.Sprintf(`%s=%s,`, names[i], quote(part))
		}
	}
	return strings.TrimSuffix(text, ",")
}

// quote returns a label's value as Prometheus reads it.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// Gather returns the metrics, for a registry of Prometheus.
func (s *Server) Gather() ([]*dto.MetricFamily, error) {
	var text bytes.Buffer
	_ = s.WriteMetrics(&text) // a buffer takes all
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	return slices.Collect(maps.Values(families)), err
}

// WriteMetrics writes the metrics in the text format of Prometheus, by the names that
// envoyproxy/ratelimit has there. redis_error counts requests that the database did not decide.
func (s *Server) WriteMetrics(w io.Writer) error {
	m := &s.metrics
	var out strings.Builder
	write := func(name, kind string, values map[string]uint64) {
		fmt.Fprintf(&out, "# TYPE ratelimit_service_%s %s\n", name, kind)
		for _, l := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&out, "ratelimit_service_%s%s %d\n", name, l, values[l])
		}
	}
	single := func(n uint64) map[string]uint64 { return map[string]uint64{"": n} }
	write("config_load_success", "counter", single(m.configLoads.Load()))
	write("config_load_error", "counter", single(m.configErrors.Load()))
	write("global_shadow_mode", "counter", single(m.shadowed.Load()))
	write("should_rate_limit_error", "counter", map[string]uint64{
		`{err_type="redis_error"}`: m.databaseErrors.Load(), `{err_type="service_error"}`: m.serviceErrors.Load(),
	})

	names := []string{"total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode"}
	sums, unknown := make([]map[string]uint64, len(names)), map[string]uint64{}
	for i := range sums {
		sums[i] = map[string]uint64{}
	}
	m.mu.RLock()
	for path, c := range m.limits {
		l := "{" + labels(path) + "}"
		for i, n := range []*hitCount{&c.total, &c.over, &c.near, &c.cached, &c.within, &c.shadow} {
			sums[i][l] += min(n.Load(), math.MaxUint64-sums[i][l])
		}
	}
	for domain, n := range m.unknown {
		unknown["{domain="+quote(domain)+"}"] = n
	}
	m.mu.RUnlock()
	for i, name := range names {
		write("rate_limit_"+name, "counter", sums[i])
	}
	write("rate_limit_domain_not_found", "counter", unknown)

	const method = `grpc_method="ShouldRateLimit"`
	var below uint64
	fmt.Fprint(&out, "# TYPE ratelimit_service_response_time_seconds histogram\n")
	for i := range m.times {
		le := "+Inf"
		if below += m.times[i].Load(); i < len(buckets) {
			le = fmt.Sprint(buckets[i])
		}
		fmt.Fprintf(&out, "ratelimit_service_response_time_seconds_bucket{%s,le=%q} %d\n", method, le, below)
	}
	fmt.Fprintf(&out, "ratelimit_service_response_time_seconds_sum{%s} %v\nratelimit_service_response_time_seconds_count{%s} %d\n",
		method, time.Duration(m.timeTotal.Load()).Seconds(), method, below)
	write("total_requests", "counter", map[string]uint64{"{" + method + "}": below})
	_, err := io.WriteString(w, out.String())
	return err
}
