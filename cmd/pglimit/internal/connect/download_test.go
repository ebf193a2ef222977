package connect

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestDownloadVersion(t *testing.T) {
	t.Parallel()
	for major, want := range map[string]string{"": "18.", "18": "18.", "13": "13."} {
		if got, err := versionOf(major); err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%q: got %q, %v; want %s…", major, got, err, want)
		}
	}
	for _, major := range []string{"1", "12", "99"} {
		if got, err := versionOf(major); err == nil {
			t.Errorf("%q: got %q, want an error", major, got)
		}
	}
}

// TestDownloadPassword: neither the log nor the error shows the password of a repository's
// URL, whether the repository answers or not.
func TestDownloadPassword(t *testing.T) {
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	for _, repository := range []string{
		"http://app:hunter2@127.0.0.1:1/maven2",
		"http://app:hunter2@" + refusing.Listener.Addr().String() + "/maven2/",
		"http://app:hun%74er2@127.0.0.1:1/maven2",
		"http://app:hunter2@127.0.0.1:none/maven2",
		"http://app:hun ter2@127.0.0.1:1/maven2",
		"http://app:hunter2%zz@127.0.0.1:1/maven2",
		"app:hunter2@127.0.0.1/maven2",
		"http://app:4711/hunter2@127.0.0.1:1/maven2",
	} {
		t.Setenv(repositoryEnv, repository)
		t.Setenv("XDG_CACHE_HOME", t.TempDir())
		var log strings.Builder
		_, err := download(t.Context(), "", func(format string, args ...any) { fmt.Fprintf(&log, format, args...) })
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
