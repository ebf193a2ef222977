// Package docs tests what the documentation says about the rest of the tree.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const top = "../.."

// TestSecurityNamesTests: every test that SECURITY.md names as proof is in the tree.
func TestSecurityNamesTests(t *testing.T) {
	t.Parallel()
	known := testNames(t)
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllSubmatch(text, -1)
	if len(named) < 20 {
		t.Errorf("SECURITY.md names %d tests: is the pattern still right?", len(named))
	}
	for _, m := range named {
		if name := string(m[1]); !known[name] {
			t.Errorf("SECURITY.md names %s, which no file has: name the test that shows the same", name)
		}
	}
}

// testNames returns the names of all tests and fuzz tests in the tree.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllSubmatch(source, -1) {
			names[string(m[1])] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestSecurityLinks: the files and headings that SECURITY.md links to are there.
func TestSecurityLinks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)(?:#([^)]+))?\)`).FindAllStringSubmatch(string(text), -1) {
		page, err := os.ReadFile(filepath.Join(top, m[1]))
		if err != nil {
			t.Error(err)
			continue
		}
		if m[2] != "" && !hasHeading(string(page), m[2]) {
			t.Errorf("%s has no heading for #%s", m[1], m[2])
		}
	}
}

func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		title := strings.TrimLeft(line, "#")
		if title != line && strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-") == anchor {
			return true
		}
	}
	return false
}
