// Package docs tests what the documentation says about the rest of the tree.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

const top = "../.."

// TestPagesNameNoTests: pages say what holds. The tests say themselves what they hold.
func TestPagesNameNoTests(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		for _, test := range regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z]\w+`).FindAllString(text, -1) {
			if test != "TestMain" { // a function that users write
				t.Errorf("%s names %s", name, test)
			}
		}
	}
}

// TestPagesMerged: no page has the two sides of a merge that nobody finished.
func TestPagesMerged(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		if mark := regexp.MustCompile(`(?m)^(<{7}|>{7}|\|{7}) .*`).FindString(text); mark != "" {
			t.Errorf("%s has %q", name, mark)
		}
	}
}

// pages returns README.md, SECURITY.md, CONTRIBUTING.md and all of docs/.
func pages(t *testing.T) map[string]string {
	t.Helper()
	tree, all := os.DirFS(top), map[string]string{}
	for _, pattern := range []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md"} {
		names, err := fs.Glob(tree, pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d pages, %v", pattern, len(names), err)
		}
		for _, name := range names {
			text := must.OK(fs.ReadFile(tree, name))(t)
			all[name] = string(text)
		}
	}
	return all
}

// TestPagesLinks: the files and headings that a page links to are there.
func TestPagesLinks(t *testing.T) {
	t.Parallel()
	for name, text := range pages(t) {
		for _, m := range regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]+))?\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			linked := filepath.Join(top, filepath.Dir(name), m[1])
			if m[1] == "" {
				linked = filepath.Join(top, name)
			}
			if _, err := os.Stat(linked); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if m[2] == "" {
				continue
			}
			if page, err := os.ReadFile(linked); err != nil || !hasHeading(string(page), m[2]) {
				t.Errorf("%s: %s has no heading for #%s (%v)", name, m[1], m[2], err)
			}
		}
	}
}

func hasHeading(page, anchor string) bool {
	for line := range strings.Lines(page) {
		title := strings.TrimLeft(line, "#")
		words := strings.Map(func(r rune) rune {
			if strings.ContainsRune(",.:'`", r) { // GitHub leaves them out of an anchor
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

// TestMakeAsksNothing: make demo and make playground create the tables of a throwaway server,
// for which the command would ask.
func TestMakeAsksNothing(t *testing.T) {
	t.Parallel()
	makefile := must.OK(os.ReadFile(filepath.Join(top, "Makefile")))(t)
	runs := regexp.MustCompile(`bin/withpg -- bin/pglimit (?:demo|playground).*`).FindAllString(string(makefile), -1)
	for _, run := range runs {
		if !strings.Contains(run, " --yes ") {
			t.Errorf("%s: --yes is missing", run)
		}
	}
	if len(runs) != 2 {
		t.Errorf("the Makefile runs %q, want demo and playground", runs)
	}
}
