package main

import (
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// TestPages: a page has the version, and names of settings and flags as the help has them, also
// the flags that all commands share. The same date and version give the same files.
func TestPages(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir, again := t.TempDir(), t.TempDir()
	must.Succeed(t, write("v0.999.0", dir))
	must.Succeed(t, write("v0.999.0", again))
	pages := must.OK(filepath.Glob(filepath.Join(dir, "*", "*")))(t)
	if len(pages) < 50 {
		t.Errorf("%d files; want a page of each command, and completions", len(pages))
	}
	for _, file := range pages {
		name, _ := filepath.Rel(dir, file)
		if string(must.OK(os.ReadFile(file))(t)) != string(must.OK(os.ReadFile(filepath.Join(again, name)))(t)) {
			t.Errorf("%s differs when it is written again", name)
		}
	}
	for name, want := range map[string]string{
		"pglimit.1.gz":            `all of the URL in the file that DATABASE_URL_FILE names`,
		"pglimit-allow-all.1.gz":  `pglimit v0.999.0`,
		"pglimit-migrate-up.1.gz": `like --embedded, with the data in DIR`,
	} {
		r := must.OK(gzip.NewReader(must.OK(os.Open(filepath.Join(dir, "man1", name)))(t)))(t)
		text := strings.NewReplacer(`\-`, "-", "\n", " ").Replace(string(must.OK(io.ReadAll(r))(t)))
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %q:\n%s", name, want, text)
		}
	}
}
