package policies

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// TestGlobAsRegexp: glob matches what the same pattern as a regular expression does.
func TestGlobAsRegexp(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	word := func(letters []string, most int) (text string) {
		for range random.IntN(most + 1) {
			text += letters[random.IntN(len(letters))]
		}
		return text
	}
	matches := 0
	for range 30_000 {
		pattern, text := word([]string{"a", "b", "é", "*", "?"}, 7), word([]string{"a", "b", "é"}, 9)
		want := regexp.MustCompile("^" + strings.NewReplacer("*", ".*", "?", ".").Replace(pattern) + "$").MatchString(text)
		if got := glob(pattern, text); got != want {
			t.Fatalf("pattern %q, text %q: %v", pattern, text, got)
		}
		if want {
			matches++
		}
	}
	if matches < 1000 {
		t.Errorf("only %d match", matches)
	}
}

// BenchmarkGlobHostile: a pattern that nearly matches at each place of the longest key.
func BenchmarkGlobHostile(b *testing.B) {
	key, pattern := strings.Repeat("a", 1024), "*"+strings.Repeat("a?", 8)+strings.Repeat("a", 109)+"b*"
	for b.Loop() {
		glob(pattern, key)
	}
}
