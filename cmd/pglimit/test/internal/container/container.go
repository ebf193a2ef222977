// Package container builds the command's image, and runs it by a Docker engine.
package container

import (
	"crypto/rand"
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

// Docker runs the docker command, and returns what it wrote without the line break at its end.
func Docker(t testing.TB, args ...string) string {
	t.Helper()
	out, err := osexec.Command("docker", args...).Output()
	if err != nil {
		var exit *osexec.ExitError
		errors.As(err, &exit)
		t.Fatalf("docker %q: %v: %s", args, err, exit.Stderr)
	}
	return strings.TrimSpace(string(out))
}

// Name returns a name that no other test has.
func Name() string { return "pglimit-test-" + strings.ToLower(rand.Text()[:10]) }

// Image builds the image by scripts/image, as a user whose files are private. The test removes it
// at its end. The package has to link the command: then go test caches no result of another image.
func Image(t testing.TB, version string) (tag string) {
	t.Helper()
	root := must.OK(repository.Root())(t)
	for _, file := range []string{"Dockerfile", "scripts/image"} {
		must.OK(os.Stat(filepath.Join(root, file)))(t) // so that go test records them
	}
	tag = Name()
	t.Cleanup(func() { _ = osexec.Command("docker", "rmi", "--force", tag).Run() })
	cmd := osexec.Command("sh", "-c", `umask 077 && exec "$@"`, "sh", filepath.Join(root, "scripts", "image"), tag, version)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("scripts/image: %v: %s", err, out)
	}
	return tag
}

// Run starts a container, with arguments of docker run, that ends with the test.
func Run(t testing.TB, args ...string) (name string) {
	t.Helper()
	name = Name()
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := osexec.Command("docker", "logs", "--tail", "50", name).CombinedOutput()
			t.Logf("container %s: %s", name, log)
		}
		_ = osexec.Command("docker", "rm", "--force", "--volumes", name).Run()
	})
	Docker(t, append([]string{"run", "--detach", "--name", name}, args...)...)
	return name
}
