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

// TestLines checks that lines of SQL, and of the Go that sqlc copies it into, have less
// than 200 characters, and that no file begins with an empty line.
func TestLines(t *testing.T) {
	t.Parallel()
	files := 0
	for _, pattern := range []string{"queries/*.sql", "db/*.go", "migrations/*.sql", "migrations/functions/*.sql"} {
		names, err := filepath.Glob(filepath.Join("..", "..", pattern))
		if err != nil || len(names) == 0 {
			t.Errorf("%s: %q, %v", pattern, names, err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files++
			n, long := 0, 0
			for line := range strings.Lines(string(data)) {
				line = strings.TrimSuffix(line, "\n")
				if n++; n == 1 && line == "" {
					t.Errorf("%s begins with an empty line", name)
				}
				if len(line) >= 200 {
					if long++; long <= 3 {
						t.Errorf("%s:%d has %d characters, want less than 200", name, n, len(line))
					}
				}
			}
		}
	}
	if files < 20 {
		t.Errorf("only %d files", files)
	}
}

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
