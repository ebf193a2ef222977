package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/accesslog"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/replay"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/limiter"
)

// TestReplayPageNotRenamed: if renaming fails, the temporary file is removed.
func TestReplayPageNotRenamed(t *testing.T) {
	t.Parallel()
	log := must.OK(replay.Read(t.Context(), new(accesslog.Parser), strings.NewReader(`192.0.2.1 - - [17/May/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1`), replay.Bounds{}, nil))(t)
	policy := limiter.Policy{Name: "p", Algorithm: limiter.GCRA, Limit: 1, Period: time.Second}
	report, err := replay.Run(t.Context(), log, []replay.Candidate{{Policy: policy, Cost: 1}}, replay.InMemory, nil)
	if err != nil {
		t.Fatal(err)
	}
	page := filepath.Join(t.TempDir(), "page.html") // became a directory after the check
	must.Succeed(t, os.Mkdir(page, 0o700))
	err = writePage(page, report)
	left, _ := os.ReadDir(filepath.Dir(page))
	if err == nil || len(left) != 1 {
		t.Errorf("%v; there are %q", err, left)
	}
}

// FuzzCandidate: a candidate that is accepted is valid, and has no field twice.
func FuzzCandidate(f *testing.F) {
	for _, text := range []string{
		"limit=60", "limit=60,period=1m,burst=10", "limit=1,algorithm=fixed_window,calendar=day,time_zone=Europe/Vienna", "limit=1, block_for=1s",
		"", ",", "=", "limit", "limit=", "limit=x", "limit=1,limit=2", "limit=1,block_for=1s,block-for=2s", "limit=NaN", "limit=Inf", "limit=1,period=-1s", "help=true", "limit=1,cost=0",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseCandidate(text)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for pair := range strings.SplitSeq(text, ",") {
			name, _, _ := strings.Cut(strings.ReplaceAll(strings.TrimSpace(pair), "_", "-"), "=")
			if seen[name] {
				t.Errorf("%q is accepted as %+v", text, c)
			}
			seen[name] = true
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%q is accepted as %+v: %v", text, c, err)
		}
		if err := c.Policy.Validate(); err != nil {
			t.Errorf("%q is accepted with a policy that is not valid: %v", text, err)
		}
	})
}
