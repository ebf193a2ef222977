package serve

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/load"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// startRatelimit starts the command under the name ratelimit, in the environment of
// envoyproxy/ratelimit and with a file of limits, and returns its addresses of gRPC and HTTP. ended
// returns all that it has logged, after it has ended.
func startRatelimit(t *testing.T, database, limits string) (cmd *exec.Cmd, at []string, ended func() string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "rl", "config")
	must.Succeed(t, os.MkdirAll(config, 0o755))
	must.Succeed(t, os.WriteFile(filepath.Join(config, "gateway.yaml"), []byte(limits), 0o600))
	cmd = testworld.Command(t, database)
	cmd.Args[0] = "/bin/ratelimit"
	cmd.Env = append(cmd.Env, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0",
		"RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=rl", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true", "USE_STATSD=false", "LOG_LEVEL=info", "DECISION_TIMEOUT=1m", "REDIS_URL=redis:6379")
	stderr := must.OK(cmd.StderrPipe())(t)
	must.Succeed(t, cmd.Start())
	lines, all := bufio.NewScanner(stderr), ""
	for len(at) < 2 && lines.Scan() {
		all += lines.Text() + "\n"
		if m := regexp.MustCompile(`listening.* address=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			at = append(at, m[1])
		}
	}
	if len(at) < 2 {
		t.Fatalf("the program does not listen:\n%s", all)
	}
	return cmd, at, func() string {
		for lines.Scan() {
			all += lines.Text() + "\n"
		}
		return all
	}
}

// TestRatelimit starts the command under the name ratelimit over a database, asks it, and ends it
// by SIGTERM. A second start goes on with the counts.
func TestRatelimit(t *testing.T) {
	t.Parallel()
	const limits = `
domain: default/eg/http
descriptors:
- key: httproute/default/shop/rule/0
  value: httproute/default/shop/rule/0
  descriptors:
  - key: rule-0-match--1
    value: rule-0-match--1
    rate_limit: {unit: YEAR, requests_per_unit: 1000000}
`
	const route, rule = "httproute/default/shop/rule/0", "rule-0-match--1"
	request := &pb.RateLimitRequest{Domain: "default/eg/http", HitsAddend: 400_000, Descriptors: []*rlcommon.RateLimitDescriptor{{
		Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: route, Value: route}, {Key: rule, Value: rule}},
	}}}
	wire := testworld.NewWire(t, testworld.NewDatabase(t))
	wire.Away.Store(true) // at the first start
	for _, want := range []struct {
		code pb.RateLimitResponse_Code
		left uint32
	}{{pb.RateLimitResponse_OK, 600_000}, {pb.RateLimitResponse_OK, 200_000}, {pb.RateLimitResponse_OVER_LIMIT, 200_000}} {
		cmd, at, ended := startRatelimit(t, wire.URL, limits)
		health := func() int {
			r := must.OK(http.Get("http://" + at[1] + "/healthcheck"))(t)
			_ = r.Body.Close()
			return r.StatusCode
		}
		conn := must.OK(grpc.NewClient(at[0], grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
		if wire.Away.Load() {
			_, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request)
			if got := health(); status.Code(err) != codes.Unavailable || got != http.StatusInternalServerError {
				t.Errorf("while the database is away: %v, health check %d", err, got)
			}
			wire.Away.Store(false)
		}
		testworld.Eventually(t, "the program is ready", func(context.Context) (bool, error) { return health() == http.StatusOK, nil })
		r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request)
		if err != nil || r.GetOverallCode() != want.code || r.GetStatuses()[0].GetLimitRemaining() != want.left {
			t.Errorf("response %v, error %v; want %v with %d left", r, err, want.code, want.left)
		}
		must.Succeed(t, conn.Close())
		load.EndHTTP(t, terminate(cmd.Process), "http://"+at[1]+"/json", `{"domain": "other", "descriptors": [{}]}`)
		all := ended()
		if err := cmd.Wait(); err != nil || strings.Contains(all, "level=ERROR") {
			t.Errorf("the program ended with %v:\n%s", err, all)
		}
	}
}

// TestServeRateLimit: serve answers Envoy's service by a file, beside its own. Its health and
// metrics are the server's, a token is needed, and flags that do not go together are refused.
func TestServeRateLimit(t *testing.T) {
	t.Parallel()
	config := file(t, "limits.yaml", "domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]\n")
	secret, line := token(t, "envoy", "decide")
	s := start(t, testworld.NewDatabase(t), "--ratelimit-config", config, "--ratelimit-count-each", "--tokens", file(t, "tokens", line))
	conn := must.OK(grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	request := &pb.RateLimitRequest{Domain: "d", HitsAddend: 2, Descriptors: []*rlcommon.RateLimitDescriptor{{
		Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: "user", Value: "a"}},
	}}}
	if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+secret)
	for _, want := range []pb.RateLimitResponse_Code{pb.RateLimitResponse_OK, pb.RateLimitResponse_OVER_LIMIT, pb.RateLimitResponse_OVER_LIMIT} {
		r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request)
		if err != nil || r.GetOverallCode() != want {
			t.Errorf("response %v, error %v; want %v", r, err, want)
		}
	}
	for _, name := range []string{"", "ratelimit", pb.RateLimitService_ServiceDesc.ServiceName} {
		if r, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, error %v", name, r, err)
		}
	}
	quota := must.OK(quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx))(t)
	must.Succeed(t, quota.Send(&quotapb.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId: &quotapb.BucketId{Bucket: map[string]string{"user": "b"}}, NumRequestsDenied: 1,
	}}}))
	given := must.OK(quota.Recv())(t).GetBucketAction()[0].GetQuotaAssignmentAction()
	if n := given.GetRateLimitStrategy().GetTokenBucket().GetMaxTokens(); n != 1 || given.GetAssignmentTimeToLive().AsDuration() <= 0 {
		t.Errorf("quota %v", given)
	}

	r, text := call(t, "GET", s.Admin+"/metrics", "")
	// Counted each: the third begins above the limit. One is the quota's.
	for _, want := range []string{`ratelimit_service_rate_limit_over_limit{domain="d",key1="user"} 4`, "pglimit_connections_refused_total", `ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 3`} {
		if r.StatusCode != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("metrics: %s without %s:\n%s", r.Status, want, text)
		}
	}
	must.Succeed(t, s.Process.Signal(syscall.SIGTERM))
	if _, err := quota.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream of quotas ended with %v", err)
	}
	if <-s.Ended; s.ProcessState.ExitCode() != 0 || strings.Contains(s.Said.String(), "ERROR") {
		t.Errorf("exit code %d, log %s", s.ProcessState.ExitCode(), &s.Said)
	}
	// Until the first configuration arrives, only this service is not ready.
	away := start(t, testworld.NewDatabase(t), "--ratelimit-xds", "localhost:1")
	waits := must.OK(grpc.NewClient(away.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer waits.Close()
	for name, want := range map[string]healthpb.HealthCheckResponse_ServingStatus{"": healthpb.HealthCheckResponse_SERVING, "ratelimit": healthpb.HealthCheckResponse_NOT_SERVING} {
		if r, err := healthpb.NewHealthClient(waits).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name}); err != nil || r.GetStatus() != want {
			t.Errorf("health of %q: %v, error %v; want %v", name, r, err, want)
		}
	}
	if _, err := pb.NewRateLimitServiceClient(waits).ShouldRateLimit(t.Context(), request); status.Code(err) != codes.Unavailable {
		t.Errorf("without a configuration: %v", err)
	}
	for want, args := range map[string][]string{
		"--ratelimit-count-each needs":   {"--ratelimit-count-each"},
		"need --grpc":                    {"--ratelimit-xds", "localhost:1"},
		"ratelimit-config ratelimit-xds": {"--ratelimit-xds", "localhost:1", "--ratelimit-config", config},
		"bad.yaml":                       {"--grpc", "localhost:0", "--ratelimit-config", file(t, "bad.yaml", "domain: [")},
	} {
		if code, _, stderr := testworld.Pglimit(t, "", append([]string{"serve", "--http", "localhost:0"}, args...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %s", args, code, stderr)
		}
	}
}
