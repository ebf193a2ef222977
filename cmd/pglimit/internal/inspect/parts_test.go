package inspect

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestHasPart: a joined key has its parts and no others, and contains each as JoinKey
// escapes it.
func TestHasPart(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range random.IntN(4) {
			b.WriteByte(`a:\`[random.IntN(3)])
		}
		return b.String()
	}
	had := 0
	for range 100_000 {
		parts, part := []string{text()}, text()
		for range random.IntN(3) {
			parts = append(parts, text())
		}
		key, want := limiter.JoinKey(parts...), slices.Contains(parts, part)
		if got := hasPart(key, part); got != want || want && !strings.Contains(key, limiter.JoinKey(part)) {
			t.Fatalf("%q has the part %q: %v, want %v", key, part, got, want)
		}
		if want {
			had++
		}
	}
	if had < 1000 {
		t.Errorf("only %d have the part", had)
	}
}

// TestLimited: a request of cost 1 is denied now, or one was within a minute; never at 0 of 90.
func TestLimited(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		level, burst float64
		ago          time.Duration // of the last denial
		want         Status
	}{
		{89, 90, time.Hour, OK}, {89.5, 90, time.Hour, Limited}, {89 + 1e-9, 90, time.Hour, OK}, {90, 90, time.Hour, Limited}, {0.4, 0.5, time.Hour, OK}, {0.5, 0.5, time.Hour, Limited},
		{1, 90, 59 * time.Second, Limited}, {1, 90, time.Minute, OK}, {0, 90, time.Second, OK}, {0.004, 90, time.Second, OK},
	} {
		k := Key{Level: &c.level, Burst: &c.burst, Share: new(c.level / c.burst), Remaining: new(c.burst - c.level), LastDeniedAt: new(now.Add(-c.ago)), RecentDenials: 3}
		if k.Complete(5, now); k.Status != c.want {
			t.Errorf("%+v: %s", c, k.Status)
		}
	}
}
