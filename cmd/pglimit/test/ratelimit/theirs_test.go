package ratelimit

import (
	"context"
	"fmt"
	"io"
	"math/rand"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/envoyproxy/ratelimit/src/config"
	"github.com/envoyproxy/ratelimit/src/provider"
	"github.com/envoyproxy/ratelimit/src/redis"
	"github.com/envoyproxy/ratelimit/src/server"
	service "github.com/envoyproxy/ratelimit/src/service"
	"github.com/envoyproxy/ratelimit/src/settings"
	"github.com/envoyproxy/ratelimit/src/stats"
	gostats "github.com/lyft/gostats"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/health"

	"github.com/pglimit/pglimit/internal/must"
)

func init() { logrus.SetOutput(io.Discard) }

// newest reports whether the module is a version since 2026-06: one with metadata, wildcards
// inside of values, and a quota_mode that denies if all quotas are used.
var newest = func() bool { _, has := reflect.TypeFor[config.RateLimit]().FieldByName("Metadata"); return has }()

// clock is the clock of both.
type clock struct{ now int64 }

func (c *clock) UnixNow() int64 { return c.now }
func (c *clock) Now() time.Time { return time.Unix(c.now, 0) }

// theirs is a service of envoyproxy/ratelimit.
type theirs struct {
	service service.RateLimitServiceServer
	manager stats.Manager
	sink    *sink
}

var redisClient = sync.OnceValues(func() (redis.Client, error) {
	r, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	scope := gostats.NewStore(gostats.NewNullSink(), false)
	return redis.NewClientImpl(scope, false, "", "tcp", "single", r.Addr(), 1, 0, 0, nil, false, nil, 10*time.Second, "", ""), nil
})

// newTheirs returns a service without a configuration. Its counts begin with prefix.
func newTheirs(t *testing.T, c *clock, prefix string) *theirs {
	t.Helper()
	client := must.OK(redisClient())(t)
	s := &sink{counts: map[string]uint64{}}
	manager := stats.NewStatManager(gostats.NewStore(s, false), settings.Settings{})
	cache := redis.NewFixedRateLimitCacheImpl(client, nil, c, rand.New(rand.NewSource(1)), 0, nil, 0.8, prefix, manager, false)
	return &theirs{
		service: service.NewService(cache, noEvents{}, manager, server.NewHealthChecker(health.NewServer(), "ratelimit", false), c, false, true, false),
		manager: manager, sink: s,
	}
}

// noEvents is a provider that never has a configuration.
type noEvents struct{}

func (noEvents) ConfigUpdateEvent() <-chan provider.ConfigUpdateEvent { return nil }
func (noEvents) Stop()                                                {}

// event is a configuration for SetConfig.
type event struct{ config config.RateLimitConfig }

func (e event) GetConfig() (config.RateLimitConfig, any) { return e.config, nil }

// load returns the configuration of a file, or why it is not valid.
func (s *theirs) load(text string) (c config.RateLimitConfig, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%v", fault)
		}
	}()
	file := config.RateLimitConfigToLoad{Name: "test.yaml", ConfigYaml: config.ConfigFileContentToYaml("test.yaml", text)}
	return config.NewRateLimitConfigLoaderImpl().Load([]config.RateLimitConfigToLoad{file}, s.manager, false), nil
}

func (s *theirs) ask(request *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return s.service.ShouldRateLimit(context.Background(), request)
}

// sink keeps the counters that are flushed to it.
type sink struct{ counts map[string]uint64 }

func (s *sink) FlushCounter(name string, value uint64) { s.counts[name] += value }
func (s *sink) FlushGauge(string, uint64)              {}
func (s *sink) FlushTimer(string, float64)             {}

var path = regexp.MustCompile(`^ratelimit\.service\.rate_limit\.(.*)\.([a-z_]+)$`)

// counts returns the counters of limits as Prometheus has them by the default mapping: the
// names of the first three parts are labels.
func (s *theirs) counts() map[string]uint64 {
	s.manager.GetStatsStore().Flush()
	all := map[string]uint64{}
	for name, n := range s.sink.counts {
		m := path.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		var labels []string
		parts := strings.Split(m[1], ".")
		for i, label := range []string{"domain", "key1", "key2"}[:min(3, len(parts))] {
			labels = append(labels, fmt.Sprintf("%s=%q", label, parts[i]))
		}
		all[fmt.Sprintf("%s{%s}", m[2], strings.Join(labels, ","))] += n
	}
	return all
}

var line = regexp.MustCompile(`(?m)^ratelimit_service_rate_limit_(.*) ([1-9]\d*)$`)

// parsed returns the same of the text of Prometheus, without zeros.
func parsed(text string) map[string]uint64 {
	all := map[string]uint64{}
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		var n uint64
		if _, err := fmt.Sscan(m[2], &n); err == nil {
			all[m[1]] = n
		}
	}
	return all
}

// difference returns the entries in which two maps differ.
func difference(theirs, ours map[string]uint64) (lines []string) {
	for name, n := range theirs {
		if n != ours[name] {
			lines = append(lines, fmt.Sprintf("%s: theirs %d, ours %d", name, n, ours[name]))
		}
	}
	for name, n := range ours {
		if _, has := theirs[name]; !has {
			lines = append(lines, fmt.Sprintf("%s: theirs 0, ours %d", name, n))
		}
	}
	slices.Sort(lines)
	return lines
}
