package inspect

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestAfter: the texts that begin with a prefix are those from the prefix up to after.
func TestAfter(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"a": "b", "ab": "ac", "%": "&", "\x7f": "\u0080", "\uD7FF": "\uE000", "\uFFFF": "\U00010000", "a\U0010FFFF": "b", "\U0010FFFF": "", "\U0010FFFF\U0010FFFF": "", "": "",
	} {
		if got := after(prefix); got != want {
			t.Errorf("after %q is %q, want %q", prefix, got, want)
		}
	}
	characters := []rune("ab%_\\\u007F\u0080\u07FF\u0800\uD7FF\uE000\uFFFD\uFFFF\U00010000\U0010FFFE\U0010FFFF")
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range random.IntN(4) {
			b.WriteRune(characters[random.IntN(len(characters))])
		}
		return b.String()
	}
	begins := 0
	for range 100_000 {
		s, prefix := text(), text()
		upper := after(prefix)
		is := strings.HasPrefix(s, prefix)
		if is {
			begins++
		}
		if in := s >= prefix && (upper == "" || s < upper); in != is {
			t.Fatalf("%q begins with %q: %v, but is in its range: %v", s, prefix, is, in)
		}
	}
	if begins < 1000 {
		t.Errorf("only %d begin so", begins)
	}
}

// TestGroups: transactions have the keys of one table and policy, each once, in lock order.
func TestGroups(t *testing.T) {
	t.Parallel()
	all := []Target{{"", "p", "k"}, {"sliding_window_log", "a", "k"}, {"gcra", "q", "b"}, {"gcra", "p", "é"}, {"gcra", "p", "z"}, {"gcra", "p", "a"}, {"gcra", "p", "z"}, {"leaky_bucket", "z", "k"}}
	before := slices.Clone(all)
	got := bundles(all, 2, nil)
	want := []bundle{{"leaky_bucket", "z", []string{"k"}}, {"token_bucket", "p", []string{"a", "z"}}, {"token_bucket", "p", []string{"é"}}, {"token_bucket", "q", []string{"b"}},
		{"sliding_window_log", "a", []string{"k"}}, {"", "p", []string{"k"}}}
	same := func(a, b bundle) bool {
		return a.algorithm == b.algorithm && a.policy == b.policy && slices.Equal(a.keys, b.keys)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("got %v, want %v", got, want)
	}
	if !slices.Equal(all, before) {
		t.Error("the caller's list was changed")
	}
}
