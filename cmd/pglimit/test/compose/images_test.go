//go:build linux

package compose

import (
	"errors"
	"os"
	osexec "os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/container"
	"github.com/pglimit/pglimit/internal/must"
)

// build builds an image of a Dockerfile and the files below dir. The test removes it at its end.
func build(t *testing.T, dir, dockerfile string) (tag string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600))
	tag = container.Name()
	t.Cleanup(func() { _ = osexec.Command("docker", "rmi", "--force", tag).Run() })
	container.Docker(t, "build", "--quiet", "--tag", tag, dir)
	return tag
}

// postgres returns an image that stands in for the official one: that of scripts/test-image, with
// the entry point as it is now.
func postgres(t *testing.T, root string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := osexec.CommandContext(t.Context(), filepath.Join(root, "scripts", "test-image"), "17").CombinedOutput(); err != nil {
		t.Fatalf("scripts/test-image: %v: %s", err, out)
	}
	entry := must.OK(os.ReadFile(filepath.Join(root, "scripts", "test-image-entrypoint")))(t)
	write(t, filepath.Join(dir, "test-image-entrypoint"), entry)
	return build(t, dir, "FROM pglimit-test-postgres:17\nCOPY test-image-entrypoint /usr/local/bin/\n")
}

// library matches the path of a library in what ldd writes.
var library = regexp.MustCompile(`(/\S+) \(0x`)

// nginx returns an image that stands in for the official one: nginx, curl and sh of this machine.
func nginx(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"nginx", "curl", "sh"} {
		path, err := osexec.LookPath(name)
		if err != nil { // where only root looks
			path = must.OK(osexec.LookPath(filepath.Join("/usr/sbin", name)))(t)
		}
		write(t, filepath.Join(dir, "root/usr/bin", name), must.OK(os.ReadFile(path))(t))
		for _, m := range library.FindAllStringSubmatch(string(must.OK(osexec.CommandContext(t.Context(), "ldd", path).Output())(t)), -1) {
			write(t, filepath.Join(dir, "root", m[1]), must.OK(os.ReadFile(m[1]))(t))
		}
	}
	return build(t, dir, "FROM scratch\nCOPY root/ /\nENV PATH=/usr/bin\n")
}

// write writes a file that everybody may run, whatever the umask is.
func write(t *testing.T, path string, data []byte) {
	t.Helper()
	must.Succeed(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o755), os.Chmod(path, 0o755)))
}
