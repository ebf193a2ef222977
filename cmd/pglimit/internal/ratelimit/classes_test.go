package ratelimit

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pglimit/pglimit/internal/must"
)

const classes = `
domain: d
descriptors:
- key: tenant
  detailed_metric: true
  rate_limit: {unit: minute, requests_per_unit: 10, pglimit: {floors: {key: priority, values: {batch: 0.2, bulk: 0.5}}}}
- key: priority
  rate_limit: {unit: minute, requests_per_unit: 1}
- key: route
  descriptors:
  - key: priority
    rate_limit: {unit: minute, requests_per_unit: 2, pglimit: {algorithm: gcra, floors: {key: tier, values: {free: 0.5}}}}
- key: counted
  rate_limit: {unit: minute, requests_per_unit: 4, pglimit: {counting: each, floors: {key: tier, values: {free: 0.5}}}}
- key: plain
  rate_limit: {unit: minute, requests_per_unit: 3}
- key: whole
  rate_limit: {unit: minute, requests_per_unit: 4, pglimit: {floors: {key: vip, values: {no: 0.5}}}}
- key: vip
  descriptors: [{key: whole, rate_limit: {unit: minute, requests_per_unit: 9}}]
`

// TestClasses: a class leaves its floor to other requests of the same key, whichever way it is
// counted.
func TestClasses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options Options
		steps   []string
	}{
		"one after the other": {steps: []string{
			"8: tenant=a,priority=batch", "OK OK:2/10",
			"tenant=a,priority=batch", "OVER OVER:2/10",
			"priority=bulk,tenant=a", "OVER OVER:2/10", // wherever the entry is
			"tenant=a,priority=urgent", "OK OK:1/10", // another value
			"tenant=a", "OK OK:0/10",
			"tenant=a,priority=", "OVER OVER:0/10",
			"5: tenant=b,priority=bulk", "OK OK:5/10",
			"tenant=b,priority=bulk", "OVER OVER:5/10",
		}},
		"with others": {steps: []string{
			"8: tenant=a", "OK OK:2/10",
			"tenant=a,priority=batch plain=", "OVER OVER:2/10 OK:3/3",
			"tenant=a,priority=low plain=", "OK OK:1/10 OK:2/3",
			"tenant=b tenant=b,priority=batch", "OK OK:9/10 OK:8/10", // two classes of one key
			"6: tenant=b", "OK OK:2/10",
			"tenant=b tenant=b,priority=batch", "OVER OK:1/10 OVER:1/10",
			"tenant=b", "OK OK:1/10", // was given back
		}},
		"checks and hits of descriptors": {steps: []string{
			"tenant=a,priority=batch+8", "OK OK:2/10", "tenant=a,priority=batch+0", "OK OK:2/10", "tenant=a,priority=bulk+0", "OVER OVER:2/10",
			"tenant=a+0", "OK OK:2/10", "tenant=a,priority=batch+1", "OVER OVER:1/10", "tenant=a,priority=batch+0", "OVER OVER:1/10",
			"tenant=a,priority=batch+-1", "OK OK:2/10", "tenant=a+1", "OK OK:1/10",
		}},
		"counted each": {steps: []string{
			"2: counted=,tier=free", "OK OK:2/4", "counted=,tier=free", "OVER OVER:1/4", "counted=", "OK OK:0/4", "counted=", "OVER OVER:0/4",
		}},
		"a server that counts each": {Options{CountEach: true}, []string{
			"8: tenant=a,priority=batch", "OK OK:2/10", "tenant=a,priority=batch plain=", "OVER OVER:1/10 OK:2/3", "tenant=a", "OK OK:0/10",
		}},
		"a shadow": {Options{Shadow: true}, []string{
			"8: tenant=a,priority=batch", "OK OK:2/10", "tenant=a,priority=batch", "OK OVER:2/10", "tenant=a,priority=batch", "OK OVER:2/10",
		}},
		"entries that are a limit as they are": {steps: []string{
			"4: vip=no,whole=", "OK OK:5/9", "4: whole=,vip=no", "OVER OVER:4/4", "2: whole=,vip=no", "OK OK:2/4",
		}},
		"another key's class": {steps: []string{
			"priority=batch", "OK OK:0/1", "priority=batch", "OVER OVER:0/1", // priority alone is a limit too
			"tenant=a,tier=free", "OK OK:0", "tenant=a,priority=batch,tier=free", "OK OK:0", "plain=,priority=batch", "OK OK:0", // no limit
			"route=,priority=batch,tier=free", "OK OK:1/2", "tier=free,route=,priority=batch", "OVER OVER:1/2", "route=,priority=batch", "OK OK:0/2",
			"route=,priority=batch,tier=free+0", "OVER OVER:0/2", "route=,priority=batch+0", "OK OK:0/2",
		}},
	} {
		s := server(t, classes, c.options)
		for i := 0; i < len(c.steps); i += 2 {
			if got := brief(ask(t, s, strings.Fields(c.steps[i])...)); got != c.steps[i+1] {
				t.Errorf("%s: step %d, %s: %s, want %s", name, i/2, c.steps[i], got, c.steps[i+1])
			}
		}
	}
}

// TestClassesOfClients: over gRPC and in JSON batch work is denied while interactive work passes,
// and both are counted under one key and in one metric. Kuadrant's gateways get the same answers.
func TestClassesOfClients(t *testing.T) {
	t.Parallel()
	s := server(t, classes, Options{})
	l := must.OK(net.Listen("tcp", "127.0.0.1:0"))(t)
	g := must.OK(s.grpcServer(Env{}))(t)
	go func() { _ = g.Serve(l) }()
	defer g.Stop()
	conn := must.OK(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	for name, passes := range map[string]func(*pb.RateLimitRequest) (bool, error){
		"gRPC": func(in *pb.RateLimitRequest) (bool, error) {
			r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), in)
			return r.GetOverallCode() == pb.RateLimitResponse_OK, err
		},
		"JSON": func(in *pb.RateLimitRequest) (bool, error) {
			body, err := protojson.Marshal(in)
			w := httptest.NewRecorder()
			s.JSON().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(string(body))))
			return w.Code == http.StatusOK, err
		},
		"Kuadrant": func(in *pb.RateLimitRequest) (bool, error) {
			r, err := s.checkRateLimit(t.Context(), in)
			if err == nil && r.GetOverallCode() == pb.RateLimitResponse_OK {
				_, err = s.reportHits(t.Context(), in)
			}
			return r.GetOverallCode() == pb.RateLimitResponse_OK, err
		},
	} {
		for i, want := range []bool{true, true, true, true, true, true, true, true, false, false} {
			if got, err := passes(requestOf(t, "tenant="+name+",priority=batch")); err != nil || got != want {
				t.Errorf("%s: batch %d passes: %t, error %v", name, i, got, err)
			}
		}
		for i, want := range []bool{true, true, false} {
			if got, err := passes(requestOf(t, "tenant="+name+",priority=interactive")); err != nil || got != want {
				t.Errorf("%s: interactive %d passes: %t, error %v", name, i, got, err)
			}
		}
		m, _, err := s.Config().match("d", descriptorOf("tenant", name))
		if err != nil {
			t.Fatal(err)
		}
		if r, err := s.limiter.Check(t.Context(), m.policy, m.key, 0); err != nil || r.Level != 10 || m.key != name {
			t.Errorf("%s: %v in use of %s, error %v", name, r.Level, m.key, err)
		}
	}
	var out strings.Builder
	must.Succeed(t, s.WriteMetrics(&out))
	for _, want := range []string{`total_hits{domain="d",key1="tenant_gRPC"} 13`, `within_limit{domain="d",key1="tenant_gRPC"} 10`, `over_limit{domain="d",key1="tenant_gRPC"} 3`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, &out)
		}
	}
}

// TestClassesOfQuotas: the bucket of a class gets blocks up to its floor only, and others after it.
func TestClassesOfQuotas(t *testing.T) {
	t.Parallel()
	s := server(t, strings.ReplaceAll(classes, "requests_per_unit: 10", "requests_per_unit: 100"), Options{})
	tokens := func(want string, id ...string) {
		t.Helper()
		q := &stream{Server: s, buckets: map[string]*bucket{}}
		if r, err := q.answer(t.Context(), usage(0, 0, 2, id...)); err != nil || actions(r) != want {
			t.Errorf("%v: %q, error %v; want %q", id, actions(r), err, want)
		}
	}
	m, _, err := s.Config().match("d", descriptorOf("tenant", "a"))
	if err != nil {
		t.Fatal(err)
	}
	must.OK(s.limiter.AllowUpTo(t.Context(), m.policy, m.key, 75))(t)
	tokens("4 for 10 s", "priority", "batch", "tenant", "a") // half of what it asks for
	tokens("1 for 10 s", "priority", "batch", "tenant", "a")
	tokens("DENY_ALL for 10 s", "priority", "batch", "tenant", "a")
	tokens("8 for 10 s", "priority", "interactive", "tenant", "a")
	tokens("8 for 10 s", "tenant", "a")
	tokens("abandon", "tier", "free", "tenant", "a")
	tokens("abandon", "priority", "batch", "tenant", "a", "more", "x")
}
