package inspect

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

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
