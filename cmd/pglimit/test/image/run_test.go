//go:build linux

package image

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlcommon "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/pglimit/pglimit/client"
	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/container"
	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/load"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// files are the containers' configuration. Limits are of windows that end with no test.
var files = map[string]string{
	"policies.yaml": `policies:
  - {name: login, algorithm: fixed_window, limit: 3, period: 1000h}
  - {name: load, algorithm: fixed_window, limit: 1000000000, period: 1000h}
  - {name: daily, algorithm: fixed_window, limit: 100, calendar: day, time_zone: Asia/Kathmandu}
`,
	"config/ratelimit.yaml": `domain: d
descriptors:
- key: user
  rate_limit: {unit: year, requests_per_unit: 1000000000}
`,
	"key-secret": "the secret of the keys\n",
}

// envoy is a request of Envoy, and asJSON the same over HTTP.
var envoy = &pb.RateLimitRequest{Domain: "d", Descriptors: []*rlcommon.RateLimitDescriptor{{
	Entries: []*rlcommon.RateLimitDescriptor_Entry{{Key: "user", Value: "alice"}},
}}}

const asJSON = `{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}`

// server is a way to run the image.
type server struct {
	options, args []string
	path, body    string // of requests over HTTP under load
	// policy has what is counted over HTTP. Over gRPC it is envoy.d.user.year.
	policy string
	try    func(t *testing.T, url string)
}

var servers = map[string]server{
	"serve": {
		args: []string{"serve", "--no-auth", "--http", ":8080", "--grpc", ":8081", "--admin", ":9090", "--policies", "/config/policies.yaml", "--ratelimit-config", "/config/config", "--timeout", "1m", "--drain-timeout", "1m"},
		path: "/v1/allow", body: `{"policy":"load","key":"alice"}`, policy: "load", try: tryServe,
	},
	"ratelimit": {
		options: []string{"--entrypoint", "/ratelimit", "--env", "RUNTIME_ROOT=/", "--env", "RUNTIME_SUBDIRECTORY=config", "--env", "DECISION_TIMEOUT=1m"},
		path:    "/json", body: asJSON, policy: "envoy.d.user.year", try: func(*testing.T, string) {},
	},
	"ratelimit of Envoy Gateway": {
		options: []string{"--entrypoint", "/bin/ratelimit", "--env", "RUNTIME_ROOT=/", "--env", "RUNTIME_SUBDIRECTORY=config", "--env", "DECISION_TIMEOUT=1m"},
		path:    "/json", body: asJSON, policy: "envoy.d.user.year", try: func(*testing.T, string) {},
	},
}

// run: with a root that cannot be written, no capabilities and 64 MiB a container migrates the
// database, and one serves. It is healthy once its database is there. SIGTERM under load over HTTP
// and gRPC ends it with code 0. It has counted the requests that it has answered.
func run(t *testing.T, image string, s server) {
	database := testworld.EmptyDatabase(t)
	network := container.Name()
	container.Docker(t, "network", "create", network)
	t.Cleanup(func() { _ = osexec.Command("docker", "network", "rm", network).Run() })
	gateway := container.Docker(t, "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", network)
	wire := testworld.NewWireAt(t, gateway, database)

	dir := t.TempDir()
	must.Succeed(t, errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "config"), 0o755)))
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		must.Succeed(t, errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chmod(path, 0o644))) // whatever the umask is
	}
	for name, text := range files {
		write(name, text)
	}
	write("database-url", wire.URL)
	options := []string{
		"--network", network, "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--memory", "64m",
		"--volume", dir + ":/config:ro", "--env", "DATABASE_URL_FILE=/config/database-url", "--env", "PGLIMIT_KEY_SECRET_FILE=/config/key-secret",
	}
	args := func(more ...string) []string { return append(options[:len(options):len(options)], more...) }
	if said := container.Docker(t, append([]string{"run", "--rm"}, args(image, "migrate", "up")...)...); !strings.Contains(said, "tables") {
		t.Errorf("migrate up: %s", said)
	}
	pool := testworld.Connect(t, database)

	wire.Away.Store(true)
	name := container.Run(t, append(args(append(s.options, "--health-interval", "1s", image)...), s.args...)...)
	health := func() (code int) {
		cmd := osexec.CommandContext(t.Context(), "docker", "exec", name, "/pglimit", "serve", "health")
		_ = cmd.Run() // the exit code reports it
		return cmd.ProcessState.ExitCode()
	}
	testworld.Eventually(t, "it says that it is not ready", func(context.Context) (bool, error) { return health() == 1, nil })
	wire.Away.Store(false)
	inspect := func() (all []inspected) {
		must.Succeed(t, json.Unmarshal([]byte(container.Docker(t, "inspect", name)), &all))
		return all
	}
	testworld.Eventually(t, "the container is healthy", func(context.Context) (bool, error) {
		state := inspect()[0].State
		if !state.Running {
			t.Fatalf("it ended: %+v", state)
		}
		return state.Health.Status == "healthy", nil
	})
	about := inspect()[0]
	password, _ := must.OK(url.Parse(database))(t).User.Password()
	for _, v := range about.Config.Env {
		if strings.Contains(v, "postgres://") || strings.Contains(v, "the secret") || password != "" && strings.Contains(v, password) {
			t.Errorf("docker inspect shows %s", v)
		}
	}
	if top := container.Docker(t, "top", name, "-o", "pid,uid"); strings.Fields(top)[3] != "65532" {
		t.Errorf("its processes belong to %q", top)
	}
	at := about.NetworkSettings.Networks[network].IPAddress
	s.try(t, "http://"+at+":8080")

	calls := load.StartGRPC(t, at+":8081", envoy)
	answers := load.EndHTTP(t, func() {
		testworld.Eventually(t, "gRPC is under load", func(context.Context) (bool, error) { return calls.Answered() >= 300, nil })
		container.Docker(t, "kill", "--signal", "TERM", name)
	}, "http://"+at+":8080"+s.path, s.body)
	want := map[string]int{s.policy: answers}
	want["envoy.d.user.year"] += calls.Wait()
	if code := container.Docker(t, "wait", name); code != "0" || inspect()[0].State.OOMKilled {
		t.Errorf("exit code %s, state %+v", code, inspect()[0].State)
	}
	for policy, n := range want {
		if got := testworld.Value[int](t, pool, `SELECT sum(level)::int FROM pglimit_fixed_window WHERE policy = $1`, policy); got != n {
			t.Errorf("%d of %s are counted, and %d answered", got, policy, n)
		}
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*)::int FROM pglimit_fixed_window WHERE key LIKE '%alice%'`); n > 0 {
		t.Error("the secret of the keys is not used")
	}
	t.Logf("%v answers", want)
}

// inspected is what docker inspect says of a container.
type inspected struct {
	State struct {
		Running, OOMKilled bool
		ExitCode           int
		Health             struct{ Status string }
	}
	Config          struct{ Env []string }
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// tryServe: the policies of the file limit, also one whose days are those of a time zone.
func tryServe(t *testing.T, url string) {
	c := must.OK(client.New(url, nil))(t)
	defer c.Close()
	for i := range 4 {
		r, err := c.Allow(t.Context(), client.Named("login"), "alice")
		if err != nil || r.Allowed != (i < 3) || (r.RetryAfter > 0) == r.Allowed {
			t.Errorf("request %d: %+v, %v", i+1, r, err)
		}
	}
	if r, err := c.Allow(t.Context(), client.Named("daily"), "alice"); err != nil || !r.Allowed {
		t.Errorf("by a time zone: %+v, %v", r, err)
	}
}
