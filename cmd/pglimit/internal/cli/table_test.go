package cli

import (
	"strings"
	"testing"

	"github.com/rivo/uniseg"
)

// TestTable: a table of 30-character keys fits 80 columns, with 20 characters of each key at
// least, and has no column with nothing in it.
func TestTable(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("日", 10) + "0123456789"
	table := Table{Header: []string{"POLICY", "KEY", "USED", "DENIED", "BLOCKED", "NOTE"}}
	table.Add("login", key, "100%", "0", "-", strings.Repeat("why ", 20))
	table.Add(strings.Repeat("p", 64), "k", "5%", "0", "-", "")
	text := table.Text(80)
	for line := range strings.Lines(text) {
		if n := uniseg.StringWidth(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if strings.Contains(text, "DENIED") || strings.Contains(text, "BLOCKED") || !strings.Contains(text, strings.Repeat("日", 9)) || !strings.Contains(text, "  100%  ") {
		t.Errorf("got\n%s", text)
	}
	if whole := table.Text(0); !strings.Contains(whole, key+"  100%") || !strings.Contains(whole, strings.Repeat("p", 64)) {
		t.Errorf("cut without a width:\n%s", whole)
	}
	if narrow := table.Text(30); !strings.Contains(narrow, strings.Repeat("p", 19)+"…  k                     5%") {
		t.Errorf("cut below 20 characters:\n%s", narrow)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, want string
		width      int
	}{{"abc", "abc  ", 5}, {"abcdef", "abcd…", 5}, {"日本語", "日本…", 5}, {"a日本語", "a日… ", 5}} {
		if got := Fit(c.text, c.width); got != c.want {
			t.Errorf("%s: got %q, want %q", c.text, got, c.want)
		}
	}
}
