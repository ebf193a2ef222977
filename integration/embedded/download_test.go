//go:build unix

package embedded

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// serverArchive has bin/initdb, bin/postgres and bin/pg_ctl: shell scripts that append their
// user's number to the file $RAN_AS and call the programs in $INSTALLED_SERVER. It was made
// by tar -cJ.
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
	var requests atomic.Int32
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = w.Write(jar.Bytes())
	})
	repository, plain, gone := httptest.NewTLSServer(serve), httptest.NewServer(serve), httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(repository.Close)
	t.Cleanup(plain.Close)
	t.Cleanup(gone.Close)
	empty, certificates, ranAs := filepath.Join(h.dir, "empty"), filepath.Join(h.dir, "certificates"), filepath.Join(h.dir, "ran-as")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: repository.Certificate().Raw})
	if err := errors.Join(os.Mkdir(empty, 0o755), os.WriteFile(certificates, certificate, 0o644),
		os.WriteFile(ranAs, nil, 0o666), os.Chmod(ranAs, 0o666)); err != nil {
		t.Fatal(err)
	}
	right := fmt.Sprintf("%x", sha256.Sum256(jar.Bytes()))
	allow := func(repository, hash, data string) *osexec.Cmd {
		cmd := h.command(t, append([]string{"allow", "k", "--data-dir", data, "--download"}, fiveADay...)...)
		cmd.Env = append(cmd.Env, "PGBIN="+empty, "PGLIMIT_DOWNLOAD_URL="+repository, "PGLIMIT_DOWNLOAD_SHA256="+hash,
			"INSTALLED_SERVER="+bindir(t), "RAN_AS="+ranAs, "SSL_CERT_FILE="+certificates)
		return cmd
	}

	expect(t, allow(gone.URL, right, "data"), 3, "fetch PostgreSQL 17", gone.URL, "404", "PGLIMIT_DOWNLOAD_URL")
	expect(t, allow(plain.URL, right, "data"), 3, "PGLIMIT_DOWNLOAD_URL", "not an https URL")
	if got := requests.Load(); got != 0 {
		t.Errorf("%d requests, want none without https", got)
	}
	expect(t, allow(repository.URL, strings.Repeat("0", 64), "data"), 3, "fetch PostgreSQL 17", "has the SHA-256 "+right)
	if text, err := os.ReadFile(ranAs); err != nil || len(text) > 0 {
		t.Errorf("a refused download was run: %q, %v", text, err)
	}

	// Data belong to one version, and the scripts run another version than their name
	// says: so each run has separate data.
	for _, data := range []string{"first", "second"} {
		code, stdout, stderr := run(t, allow(repository.URL, right, data))
		if code != 0 || !strings.HasPrefix(stdout, "allowed: 4 of 5") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", data, code, stdout, stderr)
		}
		if fetched := strings.Contains(stderr, "fetching PostgreSQL 17"); fetched != (data == "first") {
			t.Errorf("%s: stderr %q", data, stderr)
		}
	}
	if got := requests.Load(); got != 2 { // one was refused
		t.Errorf("%d requests, want 2", got)
	}
	left, err := filepath.Glob(filepath.Join(h.dir, "cache", "pglimit", "*"))
	if err != nil || len(left) != 1 {
		t.Errorf("the cache holds %q, %v; want one server", left, err)
	}
	users, err := os.ReadFile(ranAs)
	if err != nil || len(users) == 0 || slices.Contains(strings.Fields(string(users)), "0") {
		t.Errorf("the downloaded programs ran as users %q, %v; want never root", users, err)
	}
}
