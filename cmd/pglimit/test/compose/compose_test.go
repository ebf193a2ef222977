//go:build linux

// Package compose tests compose.yaml by Docker Compose, with images made of this machine's
// programs in place of those of registries.
package compose

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/container"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main) // so that a change of it is tested
	os.Exit(m.Run())
}

// project is a run of compose.yaml.
type project struct {
	name string
	cmd  []string // docker compose, or the older docker-compose
	dir  string
	env  []string
}

// newProject returns a project that the test removes at its end.
func newProject(t *testing.T) *project {
	t.Helper()
	through := must.OK(repository.Root())(t)
	must.OK(os.ReadFile(filepath.Join(through, "compose.yaml")))(t) // so that go test records it
	must.Succeed(t, filepath.WalkDir(filepath.Join(through, "deploy", "compose"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	}))
	root := must.OK(filepath.EvalSymlinks(through))(t)
	p := &project{name: container.Name(), cmd: []string{"docker-compose"}, dir: root}
	if osexec.CommandContext(t.Context(), "docker", "compose", "version").Run() == nil {
		p.cmd = []string{"docker", "compose"}
	}
	p.env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+p.name, "PORT=0",
		"PGLIMIT_IMAGE="+container.Image(t, ""), "POSTGRES_IMAGE="+postgres(t, through), "NGINX_IMAGE="+nginx(t))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.run(context.Background(), "logs", "--tail", "30"))
		}
		out, err := p.run(context.Background(), "down", "--volumes", "--remove-orphans")
		left := container.Docker(t, "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+p.name)
		left += container.Docker(t, "volume", "ls", "--quiet", "--filter", "label=com.docker.compose.project="+p.name)
		if err != nil || left != "" {
			t.Errorf("down: %v: %s; it leaves %q", err, out, left)
		}
	})
	return p
}

func (p *project) run(ctx context.Context, args ...string) (string, error) {
	args = append(p.cmd[1:len(p.cmd):len(p.cmd)], args...)
	cmd := osexec.CommandContext(ctx, p.cmd[0], args...)
	cmd.Dir, cmd.Env = p.dir, p.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// must runs a command of compose that has to succeed.
func (p *project) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := p.run(t.Context(), args...)
	if err != nil {
		t.Fatalf("%s %q: %v: %s", p.cmd, args, err, out)
	}
	return out
}

// inspected is what docker inspect says of a container.
type inspected struct {
	ID           string `json:"Id"`
	RestartCount int
	State        struct {
		Running    bool
		ExitCode   int
		StartedAt  time.Time
		FinishedAt time.Time
	}
	Config     struct{ Env []string }
	HostConfig struct {
		ReadonlyRootfs bool
		CapDrop        []string
	}
}

// service returns the container of a service.
func (p *project) service(t *testing.T, name string) (c inspected) {
	t.Helper()
	id := container.Docker(t, "ps", "--all", "--quiet", "--filter", "label=com.docker.compose.project="+p.name, "--filter", "label=com.docker.compose.service="+name)
	var all []inspected
	must.Succeed(t, json.Unmarshal([]byte(container.Docker(t, "inspect", id)), &all))
	return all[0]
}

// get sends a request to nginx from this machine.
func get(ctx context.Context, url string) (status int, retryAfter string, err error) {
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return 0, "", err
	}
	r.Close = true
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	return answer.StatusCode, answer.Header.Get("Retry-After"), answer.Body.Close()
}

// tried matches what the service try writes: five requests of each client pass.
var tried = regexp.MustCompile(`(?s)request 1: 200\s+request 2: 200\s+request 3: 200\s+request 4: 200\s+request 5: 200\s+request 6: 429 ([0-9]+)\s+limited: the next request passes in ([0-9]+) s\s+ratelimit: \{"overallCode":"OK",`)

// TestCompose: one command starts all services in their order, and shows a limited request. nginx
// limits each client, and lets all pass while the server is away. No password is in an
// environment, and what is reachable cannot write or use capabilities.
func TestCompose(t *testing.T) {
	p := newProject(t)
	began := time.Now()
	said := p.must(t, "run", "--rm", "-T", "try")
	t.Logf("%.1f s until %s", time.Since(began).Seconds(), said)
	if m := tried.FindStringSubmatch(said); m == nil || m[1] != m[2] || m[1] == "0" {
		t.Errorf("try: %s", said)
	}
	migrated := p.service(t, "migrate")
	if migrated.State.Running || migrated.State.ExitCode != 0 {
		t.Errorf("migrate: %+v", migrated.State)
	}
	for _, name := range []string{"serve", "ratelimit", "nginx", "postgres"} {
		c := p.service(t, name)
		if !c.State.Running || c.RestartCount > 0 || name != "postgres" && (!c.HostConfig.ReadonlyRootfs || len(c.HostConfig.CapDrop) != 1 || c.HostConfig.CapDrop[0] != "ALL") {
			t.Errorf("%s: %+v", name, c)
		}
		if started := c.State.StartedAt; name != "postgres" && started.Before(migrated.State.FinishedAt) {
			t.Errorf("%s started at %v, before migrate ended at %v", name, started, migrated.State.FinishedAt)
		}
		for _, v := range c.Config.Env {
			if strings.Contains(v, "postgres://") || strings.Contains(v, "PASSWORD=") {
				t.Errorf("%s: docker inspect shows %s", name, v)
			}
		}
	}

	at, _, _ := strings.Cut(container.Docker(t, "port", p.service(t, "nginx").ID, "8000"), "\n")
	if !strings.HasPrefix(at, "127.0.0.1:") {
		t.Errorf("other machines reach nginx at %s", at)
	}
	limited := func(ctx context.Context) (bool, error) {
		status, after, err := get(ctx, "http://"+at+"/")
		if denied := status == http.StatusTooManyRequests; err == nil && (denied != (after != "") || !denied && status != http.StatusOK) {
			err = errors.New(http.StatusText(status) + ", Retry-After " + after)
		}
		return status == http.StatusTooManyRequests, err
	}
	for i := range 5 {
		if is, err := limited(t.Context()); is || err != nil {
			t.Errorf("request %d of another client: limited %v, %v", i+1, is, err)
		}
	}
	testworld.Eventually(t, "the other client is limited", limited)
	p.must(t, "stop", "serve")
	if state := p.service(t, "serve").State; state.Running || state.ExitCode != 0 {
		t.Errorf("serve, stopped: %+v", state)
	}
	for range 20 {
		if is, err := limited(t.Context()); is || err != nil {
			t.Errorf("while the server is away: limited %v, %v", is, err)
		}
	}
	p.must(t, "start", "serve")
	testworld.Eventually(t, "the client is limited again", limited)
}
