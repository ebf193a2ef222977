package replay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/internal/replay"
	"github.com/pglimit/pglimit/limiter"
)

// TestReplayPageNotRenamed: if renaming fails, the temporary file is removed.
func TestReplayPageNotRenamed(t *testing.T) {
	t.Parallel()
	log, err := replay.Read(t.Context(), strings.NewReader(`192.0.2.1 - - [17/May/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`), replay.Bounds{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	policy := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}
	report, err := replay.Run(t.Context(), log, []replay.Candidate{{Policy: policy, Cost: 1}}, replay.InMemory, nil)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page.html") // became a directory after the check
	if err := os.Mkdir(page, 0o700); err != nil {
		t.Fatal(err)
	}
	err = writePage(page, report)
	left, _ := os.ReadDir(filepath.Dir(page))
	if err == nil || len(left) != 1 {
		t.Errorf("%v; there are %q", err, left)
	}
}
