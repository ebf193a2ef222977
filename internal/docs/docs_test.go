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

// proofs are the pages that name tests as proof, and how many tests each names at least.
var proofs = map[string]int{"SECURITY.md": 20, "docs/guarantees.md": 20}

// TestPagesNameTests: every test that a page names as proof is in the tree.
func TestPagesNameTests(t *testing.T) {
	t.Parallel()
	known := testNames(t)
	for page, least := range proofs {
		text, err := os.ReadFile(filepath.Join(top, page))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9_]+)`").FindAllSubmatch(text, -1)
		if len(named) < least {
			t.Errorf("%s names %d tests: is the pattern still right?", page, len(named))
		}
		for _, m := range named {
			if name := string(m[1]); !known[name] {
				t.Errorf("%s names %s, which no file has: name the test that shows the same", page, name)
			}
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

// TestPagesLinks: the files and headings that such a page links to are there.
func TestPagesLinks(t *testing.T) {
	t.Parallel()
	for name := range proofs {
		text, err := os.ReadFile(filepath.Join(top, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(string(text), -1) {
			linked := filepath.Join(top, filepath.Dir(name), m[1])
			if m[1] == "" {
				linked = filepath.Join(top, name)
			}
			page, err := os.ReadFile(linked)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if m[2] != "" && !hasHeading(string(page), m[2]) {
				t.Errorf("%s: %s has no heading for #%s", name, m[1], m[2])
			}
		}
	}
}

func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		title := strings.TrimLeft(line, "#")
		words := strings.Map(func(r rune) rune {
			if strings.ContainsRune(",.:'", r) { // GitHub leaves them out of an anchor
				return -1
			}
			return r
		}, strings.ToLower(strings.TrimSpace(title)))
		if title != line && strings.ReplaceAll(words, " ", "-") == anchor {
			return true
		}
	}
	return false
}
