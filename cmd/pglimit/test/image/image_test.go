//go:build linux

// Package image tests the image of the command in containers of a Docker engine on this machine.
package image

import (
	"archive/tar"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"maps"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/commands"
	"github.com/pglimit/pglimit/cmd/pglimit/test/internal/container"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/repository"
)

func TestMain(m *testing.M) {
	testworld.BeCommand(commands.Main)
	testworld.Main(m, 4)
}

const version = "v0.0.1-test"

// TestImage: scripts/image builds what Dockerfile describes, and it runs as it is to be deployed.
func TestImage(t *testing.T) {
	t.Parallel()
	image := container.Image(t, version)
	t.Run("contents", func(t *testing.T) { t.Parallel(); contents(t, image) })
	for name, s := range servers {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t, image, s) })
	}
}

// contents: the image has the program under its names and certificate authorities, and nothing
// else such as a shell. Its user is no root, and can read all and write nothing.
func contents(t *testing.T, image string) {
	var about []struct {
		Size   int64
		Config struct {
			User        string
			Entrypoint  []string
			Labels      map[string]string
			Healthcheck struct{ Test []string }
		}
	}
	must.Succeed(t, json.Unmarshal([]byte(container.Docker(t, "image", "inspect", image)), &about))
	c := about[0].Config
	if about[0].Size > 41_000_000 {
		t.Errorf("the image has %d bytes: must be at most 41 MB", about[0].Size)
	}
	if c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/pglimit"}) || !slices.Equal(c.Healthcheck.Test, []string{"CMD", "/pglimit", "serve", "health"}) {
		t.Errorf("%+v", c)
	}
	const label = "org.opencontainers.image."
	for _, name := range []string{"title", "description", "source", "licenses", "revision"} {
		if c.Labels[label+name] == "" {
			t.Errorf("no label %s in %v", name, c.Labels)
		}
	}
	if said := container.Docker(t, "run", "--rm", "--network", "none", image, "version"); !strings.Contains(said, version) || c.Labels[label+"version"] != version {
		t.Errorf("label version %q, and pglimit version says %q", c.Labels[label+"version"], said)
	}

	made := container.Docker(t, "create", image)
	t.Cleanup(func() { container.Docker(t, "rm", made) })
	export := osexec.CommandContext(t.Context(), "docker", "export", made)
	stdout := must.OK(export.StdoutPipe())(t)
	must.Succeed(t, export.Start())
	has := map[string]string{} // path to type, or target
	for files := tar.NewReader(stdout); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Succeed(t, err)
		switch {
		case h.Typeflag == tar.TypeSymlink && h.Name != "etc/mtab": // Docker's
			has[h.Name] = h.Linkname
		case h.Typeflag == tar.TypeReg && h.Size > 0: // empty ones are places for Docker's
			has[h.Name] = "file"
		}
		may := map[byte]int64{tar.TypeReg: 0o4, tar.TypeDir: 0o5}[h.Typeflag]
		if mount, _, _ := strings.Cut(h.Name, "/"); mount != "dev" && mount != "proc" && mount != "sys" && h.Typeflag != tar.TypeSymlink && (h.Uid != 0 || h.Mode&may != may || h.Mode&0o022 != 0) {
			t.Errorf("%s has mode %o and owner %d: must be root's, to read and not to write", h.Name, h.Mode, h.Uid)
		}
		if strings.HasSuffix(h.Name, ".crt") && !x509.NewCertPool().AppendCertsFromPEM(must.OK(io.ReadAll(files))(t)) {
			t.Errorf("%s has no certificate", h.Name)
		}
	}
	must.Succeed(t, export.Wait())
	if want := map[string]string{"pglimit": "file", "ratelimit": "pglimit", "bin/ratelimit": "../pglimit", "etc/ssl/certs/ca-certificates.crt": "file"}; !maps.Equal(has, want) {
		t.Errorf("the image has %v, want %v", has, want)
	}
}

// TestImageFails: scripts/image fails with what Docker said.
func TestImageFails(t *testing.T) {
	t.Parallel()
	root := must.OK(repository.Root())(t)
	out, err := osexec.CommandContext(t.Context(), filepath.Join(root, "scripts", "image"), "Invalid:Tag:").CombinedOutput()
	if exit := (*osexec.ExitError)(nil); !errors.As(err, &exit) || !strings.Contains(string(out), "invalid") || !strings.Contains(string(out), "docker build failed") {
		t.Errorf("error %v: %s", err, out)
	}
}
