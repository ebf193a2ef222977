package connect

import (
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
