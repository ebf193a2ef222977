package migrate

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

var release = flag.String("release", "", "a version such as 0.1.0: record the migrations as they are released with it")

// TestReleased: from its first release on, a migration's text does not change, and
// testdata/released.txt has each release of the changelog: "# 0.1.0 8 2" with its last versions
// of the tables and the functions, and then the files with their hashes.
func TestReleased(t *testing.T) {
	const file = "testdata/released.txt"
	record, err := os.ReadFile(file)
	changelog, err2 := os.ReadFile("../../CHANGELOG.md")
	now := ""
	for _, s := range []*Set{tables, functions} {
		for _, f := range s.list() {
			text, _ := fs.ReadFile(s.files, f.path)
			now += fmt.Sprintf("%s %x\n", f.path, sha256.Sum256(text))
		}
	}
	if *release != "" {
		record = fmt.Appendf(record, "# %s %d %d\n%s", *release, slices.Max(tables.versions()), slices.Max(functions.versions()), now)
		err = errors.Join(err, os.WriteFile(file, record, 0o644))
	}
	must.Succeed(t, errors.Join(err, err2))
	for line := range strings.Lines(string(record)) {
		if !strings.HasPrefix(line, "# ") && !strings.Contains("\n"+now, "\n"+line) {
			t.Errorf("changed or removed after its release, write a new migration instead: %s", line)
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^## ([0-9.]+), (.*)$`).FindAllStringSubmatch(string(changelog), -1) {
		if m[2] != "unreleased" && !strings.Contains(string(record), "# "+m[1]+" ") {
			t.Errorf("run go test ./internal/migrate -run Released -release %s", m[1])
		}
	}
}
