package ratelimit

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

const quotas = `
domain: d
descriptors:
- {key: user, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: user, value: free, rate_limit: {unlimited: true}}
- {key: user, value: none, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: user, value: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
- key: zone
  descriptors: [{key: app, rate_limit: {unit: second, requests_per_unit: 50}}]
`

func usage(elapsed time.Duration, allowed, denied uint64, id ...string) *quotapb.RateLimitQuotaUsageReports {
	bucket := map[string]string{}
	for i := 0; i < len(id); i += 2 {
		bucket[id[i]] = id[i+1]
	}
	return &quotapb.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &quotapb.BucketId{Bucket: bucket}, TimeElapsed: durationpb.New(elapsed), NumRequestsAllowed: allowed, NumRequestsDenied: denied,
	}}}
}

// actions returns a response as text: the tokens or rule, and the life in seconds.
func actions(r *quotapb.RateLimitQuotaResponse) string {
	var all []string
	for _, a := range r.GetBucketAction() {
		s := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
		life := a.GetQuotaAssignmentAction().GetAssignmentTimeToLive().GetSeconds()
		switch {
		case a.GetAbandonAction() != nil:
			all = append(all, "abandon")
		case s.GetTokenBucket() != nil:
			all = append(all, fmt.Sprintf("%d for %d s", s.GetTokenBucket().GetMaxTokens(), life))
		default:
			all = append(all, fmt.Sprintf("%v for %d s", s.GetBlanketRule(), life))
		}
	}
	return strings.Join(all, ", ")
}

// TestQuotaActions walks streams through reports: what is assigned, and what the limit counts.
func TestQuotaActions(t *testing.T) {
	t.Parallel()
	type step struct {
		wait            time.Duration // before the report, which has it as the time elapsed
		allowed, denied uint64
		want            string
		level           float64       // of user a afterwards
		skew            time.Duration // of the client's clock
	}
	a := []string{"user", "a"}
	for name, c := range map[string]struct {
		id    []string
		steps []step
	}{
		"unknown":   {[]string{"host", "a"}, []step{{0, 0, 1, "abandon", 0, 0}, {time.Second, 0, 1, "abandon", 0, 0}}},
		"no leaf":   {[]string{"zone", "a"}, []step{{0, 0, 1, "abandon", 0, 0}}},
		"one more":  {[]string{"zone", "a", "app", "b", "user", "c"}, []step{{0, 0, 1, "abandon", 0, 0}}},
		"many":      {strings.Split("a,1,b,1,c,1,d,1,e,1,f,1,g,1,h,1,i,1,j,1,k,1", ","), []step{{0, 0, 1, "abandon", 0, 0}}},
		"any order": {[]string{"app", "a", "zone", "b"}, []step{{0, 0, 1, "4 for 1 s", 0, 0}}},
		"unlimited": {[]string{"user", "free"}, []step{{0, 1, 0, "ALLOW_ALL for 10 s", 0, 0}, {time.Second, 9, 0, "", 0, 0}, {8 * time.Second, 9, 0, "ALLOW_ALL for 40 s", 0, 0}}},
		"closed":    {[]string{"user", "none"}, []step{{0, 0, 1, "DENY_ALL for 10 s", 0, 0}}},
		"shadow":    {[]string{"user", "trial"}, []step{{0, 9, 1, "ALLOW_ALL for 10 s", 0, 0}}},
		"a block is replaced when it is nearly used": {a, []step{
			{0, 0, 1, "4 for 10 s", 4, 0}, {time.Second, 1, 0, "", 4, 0}, {time.Second, 2, 0, "8 for 10 s", 12, 0}, {time.Second, 0, 0, "", 12, 0},
			{time.Second, 8, 9, "10 for 10 s", 22, 0}, // a tenth of the limit
		}},
		"what passed without a block is counted":              {a, []step{{0, 7, 0, "10 for 10 s", 17, 0}, {time.Second, 12, 0, "10 for 10 s", 29, 0}}},
		"no report is too large":                              {a, []step{{0, math.MaxUint64, 0, "DENY_ALL for 10 s", 100, 0}, {25 * time.Hour, 1, 0, "4 for 600 s", 5, 0}}},
		"the limit ends":                                      {a, []step{{0, 98, 0, "2 for 10 s", 100, 0}, {time.Second, 2, 3, "", 100, 0}, {9 * time.Second, 0, 3, "DENY_ALL for 45 s", 100, 0}}},
		"the rest comes back after a life":                    {a, []step{{0, 0, 9, "10 for 10 s", 10, 0}, {time.Second, 2, 0, "", 10, 0}, {9 * time.Second, 0, 0, "", 10, 0}, {time.Second, 0, 0, "", 2, 0}}},
		"not by a client's clock alone":                       {a, []step{{0, 0, 9, "10 for 10 s", 10, 0}, {time.Second, 2, 0, "", 10, 0}, {wait: time.Second, level: 10, skew: time.Hour}}},
		"and after a denial":                                  {a, []step{{0, 0, 9, "10 for 10 s", 10, 0}, {time.Second, 2, 0, "", 10, 0}, {time.Second, 0, 1, "4 for 10 s", 6, 0}}},
		"not if the client may not have it yet":               {a, []step{{0, 0, 9, "10 for 10 s", 10, 0}, {11 * time.Second, 0, 0, "", 10, 0}, {12 * time.Second, 0, 0, "abandon", 10, 0}}},
		"not if it may have used what an earlier stream gave": {a, []step{{0, 5, 0, "10 for 10 s", 15, 0}, {time.Second, 2, 0, "", 15, 0}, {11 * time.Second, 0, 0, "", 15, 0}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiter.NewMemory(nil)
			config := mustConfig(t, quotas)
			q := &stream{Server: NewServer(l, config, Options{Logger: slog.New(slog.DiscardHandler)}), buckets: map[string]*bucket{}}
			user := must.OK(config.quota("d", map[string]string{"user": "a"}, []string{"user"}))(t)
			for i, s := range c.steps {
				time.Sleep(s.wait)
				r, err := q.answer(t.Context(), usage(s.wait+s.skew, s.allowed, s.denied, c.id...))
				if got := actions(r); err != nil || got != s.want {
					t.Errorf("%s, step %d: %q, error %v; want %q", name, i, got, err, s.want)
				}
				if at, err := l.Check(t.Context(), user.policy, user.key, 0); err != nil || at.Level != s.level {
					t.Errorf("%s, step %d: %v in use, error %v; want %v", name, i, at.Level, err, s.level)
				}
			}
			if kept := len(q.buckets) > 0; kept == (c.steps[len(c.steps)-1].want == "abandon") {
				t.Errorf("%s: a bucket is kept: %t", name, kept)
			}
		})
	}
}

// TestQuotaFails: reports that are not valid end their stream with an error that names the
// field. A new configuration is used at once, and an outage keeps what clients have.
func TestQuotaFails(t *testing.T) {
	t.Parallel()
	negative, other := usage(-time.Second, 0, 1, "user", "a"), usage(0, 0, 1, "user", "a")
	other.Domain = "e"
	for want, all := range map[string][]*quotapb.RateLimitQuotaUsageReports{
		"domain: must not be empty":                  {{}},
		`domain: is "e" after "d"`:                   {usage(0, 0, 1, "user", "a"), other},
		"bucket_quota_usages[0].bucket_id: must not": {usage(0, 0, 1)},
		`bucket_id: "user" is ""`:                    {usage(0, 0, 1, "user", "")},
		"time_elapsed: is -1 s":                      {negative},
	} {
		q := &stream{Server: server(t, quotas, Options{}), buckets: map[string]*bucket{}}
		var err error
		for _, r := range all {
			_, err = q.answer(t.Context(), r)
		}
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}

	s := server(t, quotas, Options{})
	q := &stream{Server: s, buckets: map[string]*bucket{}}
	answer := func(want string) {
		t.Helper()
		if r, err := q.answer(t.Context(), usage(0, 0, 1, "user", "a")); err != nil || actions(r) != want {
			t.Errorf("%q, error %v; want %q", actions(r), err, want)
		}
	}
	answer("4 for 10 s")
	s.SetConfig(mustConfig(t, strings.Replace(quotas, "requests_per_unit: 100", "requests_per_unit: 0", 1)), nil)
	answer("DENY_ALL for 10 s")
	s.SetConfig(mustConfig(t, oneLimit("d")), nil)
	answer("abandon")
	s.SetConfig(mustConfig(t, quotas), nil)
	s.limiter = limiter.NewMemory(&limiter.Config{MaxKeys: -1}) // which decides nothing
	answer("")
	for i := range maxBuckets {
		q.buckets[fmt.Sprint(i)] = &bucket{}
	}
	delete(q.buckets, `"user"="a",`)
	answer("abandon")
	s.config.Store(nil)
	if _, err := q.answer(t.Context(), usage(0, 0, 1, "user", "a")); status.Code(err) != codes.Unavailable {
		t.Error("without a configuration:", err)
	}
}

// TestQuotaStream: a stream answers reports, and ends with its client's and when the server drains.
func TestQuotaStream(t *testing.T) {
	t.Parallel()
	s := server(t, quotas, Options{})
	p := &pipe{ctx: t.Context(), up: make(chan *quotapb.RateLimitQuotaUsageReports), later: make(chan *quotapb.RateLimitQuotaResponse)}
	ended := make(chan error)
	serve := func() { ended <- s.StreamRateLimitQuotas(p) }
	go serve()
	p.up <- usage(0, 0, 1, "user", "a")
	if got := actions(<-p.later); got != "4 for 10 s" {
		t.Error(got)
	}
	p.up <- usage(0, 0, 1)
	if err := <-ended; status.Code(err) != codes.InvalidArgument {
		t.Error("a report that is not valid:", err)
	}
	go serve()
	s.Drain()
	s.Drain()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Error("after Drain:", err)
	}
	s, p = server(t, quotas, Options{}), &pipe{ctx: t.Context(), up: make(chan *quotapb.RateLimitQuotaUsageReports)}
	close(p.up)
	if err := s.StreamRateLimitQuotas(p); err != nil {
		t.Error("after the client's end:", err)
	}
}
