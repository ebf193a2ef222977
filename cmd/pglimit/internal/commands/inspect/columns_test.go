package inspect

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rivo/uniseg"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/inspect"
)

func number(v float64) *float64 { return &v }

// hostile are keys that clients may choose.
var hostile = []string{
	"", "alice", strings.Repeat("x", 1024), "\x1b[2J\x1b[31mred", "two\r\nlines\tand\btabs", "\u202egnp.exe", "\u200bzero", "日本語のキーはとても長いので切られます",
	"👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", "e\u0301\u0301\u0301", strings.Repeat("\u0301", 300), "\x9b31m", "\U0010FFFF", `\`, "%s%n",
}

// TestLinesFit: on a screen of any width each line has that width, whatever the keys, and no
// character that a terminal obeys.
func TestLinesFit(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := now.Add(1000 * time.Hour)
	var keys []inspect.Key
	for n, key := range hostile {
		keys = append(keys, inspect.Key{Policy: strings.Repeat("policy", n), Algorithm: algorithm.Names[n%7], Key: key, Level: number(12345678.9), Burst: number(1 << 53),
			Share: number(float64(n) * 1000), Remaining: number(1e-9), BlockedUntil: &later, UpdatedAt: &now, Denials: 123456789, LastDeniedAt: &now})
	}
	keys = append(keys, inspect.Key{Policy: "p", Algorithm: "gcra", Key: "k"})
	for _, width := range []int{20, 40, 69, 70, 79, 80, 99, 100, 119, 120, 200} {
		all := lines(keys, width, short(now))
		if len(all) != len(keys)+1 {
			t.Fatalf("width %d: %d lines", width, len(all))
		}
		for _, line := range all {
			if n := uniseg.StringWidth(line); n != width {
				t.Errorf("width %d: a line has %d: %q", width, n, line)
			}
			if strings.IndexFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
				t.Errorf("width %d: a character that does not print: %q", width, line)
			}
		}
	}
	const want = "POLICY     KIND    KEY                  USED  LEVEL/BURST   BLOCKED UNTIL DENIALS"
	if got := strings.TrimRight(lines(nil, 79, short(now))[0], " "); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("at 79 columns:\n%s", got)
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		got, want string
	}{
		{percent(nil), "-"}, {percent(number(0)), "0%"}, {percent(number(0.999)), "99%"}, {percent(number(1)), "100%"}, {percent(number(0.29)), "29%"}, {percent(number(2.5)), "250%"}, {percent(number(1e9)), ">9999%"},
		{units(nil), "-"}, {units(number(0)), "0"}, {units(number(9.994)), "9.99"}, {units(number(123.4)), "123"}, {units(number(1e9)), "1e+09"}, {units(number(0.001)), "0"},
		{shownKey(""), "(others)"}, {shownKey("a\nb"), `"a\nb"`},
		{fit("abc", 5), "abc  "}, {fit("abcdef", 5), "abcd…"}, {fit("日本語", 5), "日本…"}, {fit("a日本語", 5), "a日… "},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	soon, late := now.Add(time.Hour), now.Add(48*time.Hour)
	if at := short(now); at(nil) != "-" || at(&soon) != "04:04:05" || at(&late) != "2026-01-04" {
		t.Errorf("times: %s, %s, %s", at(nil), at(&soon), at(&late))
	}
}
