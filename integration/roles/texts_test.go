package roles

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	statement = regexp.MustCompile(`^\s*(?:SELECT|INSERT|UPDATE|DELETE|WITH)\s`)
	elsewhere = regexp.MustCompile(`^(?:bench|db|examples|integration|pglimittest|\..+)$`) // db is of TestStrangersInStatements
	// atCatalog are files whose statements are sent with pg_catalog as the search_path.
	atCatalog = regexp.MustCompile(`^(?:doctor/(?:locks|vacuum)|internal/(?:cluster/\w+|grants/\w+|installed/\w+|migrate/made))\.go$`)
)

// TestStrangersInGo is TestStrangersInStatements for statements that Go files have whole. Those
// put together are run by the tests of their programs.
func TestStrangersInGo(t *testing.T) {
	t.Parallel()
	p := newProbe(t)
	const root = "../testdata/repository/."
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch name = filepath.ToSlash(name); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && elsewhere.MatchString(name):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || atCatalog.MatchString(name):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(l.Value)
			if err != nil || !statement.MatchString(text) {
				return true
			}
			used := p.uses(t, text)
			if last := len(used) - 1; last >= 0 && strings.Contains(used[last], "SQLSTATE") { // a part of a statement
				used = used[:last]
			} else {
				read++
			}
			if len(used) > 0 {
				t.Errorf("%s: %.60q uses %s", name, text, strings.Join(used, ", "))
			}
			return true
		})
		return nil
	})
	if err != nil || read < 30 {
		t.Errorf("%d statements, %v", read, err)
	}
}
