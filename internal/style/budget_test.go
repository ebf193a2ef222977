package style

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// budgetRow matches a row of the table of budgets: part, lines, budget, and why there are more.
var budgetRow = regexp.MustCompile("(?m)^\\| `?([a-z/.]+)`? \\| ([0-9,]+) \\| ([0-9,]+) \\| (.*)\\|$")

// room is how many lines fewer than the table says a part may have.
const room = 500

// TestBudgets: no part of the repository has more lines, or the pages more words, than
// CONTRIBUTING.md says, nor far fewer. A part above its budget says why.
func TestBudgets(t *testing.T) {
	t.Parallel()
	const root = "../.."
	has := map[string]int{}
	must.Succeed(t, fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		switch path.Ext(name) {
		case ".go":
			has[partOf(name)] += bytes.Count(must.OK(os.ReadFile(path.Join(root, name)))(t), []byte("\n"))
		case ".md":
			has["words"] += len(bytes.Fields(must.OK(os.ReadFile(path.Join(root, name)))(t)))
		}
		return nil
	}))
	number := func(text string) int { return must.OK(strconv.Atoi(strings.ReplaceAll(text, ",", "")))(t) }
	page := string(must.OK(os.ReadFile(path.Join(root, "CONTRIBUTING.md")))(t))
	for _, row := range budgetRow.FindAllStringSubmatch(page, -1) {
		part, lines, budget, why := row[1], number(row[2]), number(row[3]), row[4]
		n, ok := has[part]
		switch delete(has, part); {
		case !ok:
			t.Errorf("there is no part %s", part)
		case n > lines || n < lines-room:
			t.Errorf("%s has %d, and CONTRIBUTING.md says %d", part, n, lines)
		case (lines > budget) != (why != ""):
			t.Errorf("%s: a part above its budget says why, and no other", part)
		}
	}
	for part := range has {
		t.Errorf("CONTRIBUTING.md has no budget of %s", part)
	}
}

// partOf returns the part of the repository that a source belongs to: tests, db, or else a
// module.
func partOf(name string) string {
	first, rest, _ := strings.Cut(name, "/")
	switch {
	case strings.HasSuffix(name, "_test.go"):
		return "tests"
	case first == "cmd" && strings.HasPrefix(rest, "pglimit/"):
		return "cmd/pglimit"
	case first == "db", first == "integration", first == "bench", first == "examples", first == "pglimittest":
		return first
	case first == "client", first == "prompglimit", first == "otelpglimit", first == "grpclimit", first == "riverlimit":
		return "client"
	}
	return "."
}
