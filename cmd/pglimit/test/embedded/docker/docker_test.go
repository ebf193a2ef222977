//go:build unix

// Package docker tests pglimit --embedded in a container of a Docker engine.
package docker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 2)
}

// withoutServer lets h's command find no PostgreSQL server, and a docker command that runs
// image and its entry point instead of the official ones.
func withoutServer(t *testing.T, h *testworld.House, image, entry string) {
	t.Helper()
	docker := must.OK(osexec.LookPath("docker"))(t)
	bin := filepath.Join(h.Dir, "bin")
	script := fmt.Sprintf("#!/bin/sh\nfor a; do shift; case $a in postgres:17-alpine) a=%s;; docker-entrypoint.sh) a=%s;; esac; set -- \"$@\" \"$a\"; done\nexec %s \"$@\"\n", image, entry, docker)
	must.Succeed(t, errors.Join(os.Mkdir(bin, 0o755), os.WriteFile(filepath.Join(bin, "docker"), []byte(script), 0o755)))
	h.Env = []string{"PGBIN=" + bin, "PATH=" + bin + ":" + os.Getenv("PATH")}
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := osexec.Command("docker", args...).CombinedOutput()
	if err != nil {
		t.Errorf("docker %q: %v: %s", args, err, out)
	}
	return string(out)
}

// TestDockerEmbedded: without an installed server --embedded runs a container, which keeps
// its counts. The process list never shows its password. Where the engine cannot get the
// official image, the test builds one from Debian's packages.
func TestDockerEmbedded(t *testing.T) {
	t.Parallel()
	image, entry := "postgres:17-alpine", "docker-entrypoint.sh"
	if osexec.Command("docker", "image", "inspect", image).Run() != nil && osexec.Command("docker", "pull", image).Run() != nil {
		image, entry = "pglimit-test-postgres:17", "test-image-entrypoint"
		if out, err := osexec.Command("../../testdata/repository/scripts/test-image", "17").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	h := testworld.NewHouse(t)
	withoutServer(t, h, image, entry)
	if got := h.Allow(t, "(Docker)", "--data-dir", h.Data()); got != 4 {
		t.Errorf("%v remaining, want 4", got)
	}
	password := must.OK(os.ReadFile(filepath.Join(h.Data(), "password")))(t)
	name := fmt.Sprintf("pglimit-%.8x", sha256.Sum256(password))
	t.Cleanup(func() { docker(t, "volume", "rm", name) })
	containers := func() string { return docker(t, "ps", "-aq", "--filter", "name="+name) }
	if left := containers(); left != "" {
		t.Errorf("container %s is left", left)
	}

	// The volume keeps the counts, also after kill -9 of the keeper and a start at once.
	for _, remaining := range []float64{3, 1} {
		l := h.Start(t)
		l.Ask(t, remaining)
		if list, err := osexec.Command("ps", "-A", "-o", "args=").Output(); err != nil || bytes.Contains(list, password) {
			t.Errorf("the process list shows the password, or %v", err)
		}
		h.KillKeeper(t)
		if remaining == 3 { // otherwise no command follows: the container ends by itself
			if got := h.Allow(t, "(started)", "--data-dir", h.Data()); got != 2 {
				t.Errorf("after kill -9 of the keeper: %v remaining, want 2", got)
			}
		}
		l.In.Close()
		l.End(t, 0, "(started)")
	}
	testworld.Eventually(t, "the container is gone", func(context.Context) (bool, error) { return containers() == "", nil })
}

func TestDockerEmbeddedWithoutImage(t *testing.T) {
	t.Parallel()
	h := testworld.NewHouse(t)
	withoutServer(t, h, "127.0.0.1:1/none", "none")
	code, _, stderr := testworld.RunCommand(t, h.Command(t, "allow", "k", "--limit", "5", "--data-dir", h.Data()))
	for _, part := range []string{"pulling postgres:17-alpine", "no PostgreSQL server found: PGBIN is", "install one", "let Docker run one: docker pull", "127.0.0.1:1"} {
		if code != 3 || !strings.Contains(stderr, part) {
			t.Errorf("exit code %d, stderr %q, want %q in it", code, stderr, part)
		}
	}
}
