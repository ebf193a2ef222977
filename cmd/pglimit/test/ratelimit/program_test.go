package ratelimit

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pglimit/pglimit/pglimittest"
)

// TestProgram starts the command under the name ratelimit with the other's environment and
// a database, asks it, and ends it by SIGTERM. A second start goes on with the counts.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "ratelimit")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/pglimit/pglimit/cmd/pglimit").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile("testdata/gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "rl", "config"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "rl", "config", "gateway.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	route := "httproute/default/shop/rule/0/match/0/www_example_com"
	request := &pb.RateLimitRequest{Domain: "default/eg/http", HitsAddend: 400_000, Descriptors: []*rlcommon.RateLimitDescriptor{{
		Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: route, Value: route}, {Key: "rule-2-match--1", Value: "rule-2-match--1"}},
	}}}
	url := pglimittest.URL(t)
	for _, remaining := range []uint32{600_000, 200_000} {
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), "DATABASE_URL="+url, "HOST=127.0.0.1", "PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0",
			"RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=rl", "RUNTIME_WATCH_ROOT=false", "RUNTIME_IGNOREDOTFILES=true", "USE_STATSD=false", "REDIS_URL=redis:6379")
		stderr, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var at []string // gRPC, HTTP
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
		conn, err := grpc.NewClient(at[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		r, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), request)
		if err != nil || r.GetOverallCode() != pb.RateLimitResponse_OK || r.GetStatuses()[0].GetLimitRemaining() != remaining {
			t.Errorf("response %v, error %v; want %d left", r, err, remaining)
		}
		_ = conn.Close()
		health, err := http.Get("http://" + at[1] + "/healthcheck")
		if err != nil {
			t.Fatal(err)
		}
		if _ = health.Body.Close(); health.StatusCode != http.StatusOK {
			t.Errorf("health check: %s", health.Status)
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			all += lines.Text() + "\n"
		}
		if err := cmd.Wait(); err != nil || strings.Contains(all, "level=ERROR") {
			t.Errorf("the program ended with %v:\n%s", err, all)
		}
	}
}
