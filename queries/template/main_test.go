package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// generated matches the first line of a file that make generate writes.
var generated = regexp.MustCompile(`^(?:--|//) Code generated .* DO NOT EDIT\.$`)

// TestGeneratedFilesSaySo checks that the first line marks generated files, so that
// linters, reviews and editors skip them.
func TestGeneratedFilesSaySo(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../../db/*.go")
	if err != nil || len(names) < 10 {
		t.Fatalf("db: %q, %v", names, err)
	}
	for _, a := range algorithms {
		names = append(names, "../../queries/"+a.Table+".sql")
	}
	names = append(names, "../../migrations/functions/00001_functions.sql", "../../migrations/functions/00002_functions_callable.sql")
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
			continue
		}
		first, _, _ := strings.Cut(string(data), "\n")
		if !generated.MatchString(first) {
			t.Errorf("%s begins with %q", name, first)
		}
	}
}

// TestWrapKeepsTheWords checks that wrap changes only white space and leaves short lines
// alone.
func TestWrapKeepsTheWords(t *testing.T) {
	t.Parallel()
	long := "    level = CASE WHEN " + strings.Repeat("GREATEST(t.updated_at_us, c.us) + ", 8) + "1 > 0 THEN a[1 + 2] ELSE " + strings.Repeat("b * ", 40) + "2 END,\n"
	text := "SELECT 1,\n" + long + "-- " + strings.Repeat("a comment, ", 30) + "\n" + strings.Repeat("x", 300) + "\n"
	got := wrap(text)
	if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(text), " ") {
		t.Errorf("the words changed:\n%s", got)
	}
	for line := range strings.Lines(got) {
		if len(line) > width+1 && !strings.HasPrefix(line, "--") && !strings.HasPrefix(line, "xxx") {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
	if wrap(got) != got {
		t.Errorf("wrap again: got\n%s, want\n%s", wrap(got), got)
	}
}
