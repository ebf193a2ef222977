// Package style tests that the sources keep to the rules of CONTRIBUTING.md on comments and on
// the size of files and functions.
package style

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

const (
	maxFunction = 60  // lines
	maxFile     = 400 // lines
)

// larger lists what is larger than the rules allow. Nothing is added to it: cut what grows.
var larger = []string{
	"bench/cluster.go cluster", "bench/leases.go leases", "bench/soak/soak.go run", "bench/spend.go spend",
	"cmd/pglimit/internal/commands/block.go newBlock", "cmd/pglimit/internal/commands/find.go newTop",
	"cmd/pglimit/internal/commands/lines.go run",
	"cmd/pglimit/internal/commands/migrate.go runMigrations",
	"cmd/pglimit/internal/commands/replay.go newReplay",
	"cmd/pglimit/internal/commands/why.go newWhy",
	"cmd/pglimit/internal/embedded/container.go startContainer",
	"cmd/pglimit/internal/ratelimit/run.go Run", "cmd/pglimit/internal/replay/log.go Read",
	"cmd/pglimit/internal/serve/serve.go", "cmd/pglimit/internal/serve/serve.go Prepare", "cmd/pglimit/internal/serve/serve.go Run",
	"examples/river/main.go run", "integration/testworld/functionsearch.go SearchFunctions",
	"internal/conformance/search/account.go", "internal/conformance/search/account.go judge",
	"internal/conformance/search/draw.go step", "internal/conformance/search/search.go run",
	"internal/store/dispatch/queue.go", "internal/store/dispatch/serial.go sendTogether",
	"internal/store/postgres/exec/runner.go Run",
	"queries/functions/main.go", "queries/functions/main.go functions",
}

// vague matches words that make a reader look for what they stand for: a parameter has a name.
var vague = regexp.MustCompile(`\b(so many|that many|that number|of that (name|range|text))\b`)

// claim matches how a test's comment goes on after the test's name: with a colon and what it
// holds, or with what it does.
var claim = regexp.MustCompile(`^(Test|Fuzz|Benchmark|Example)\w* (of|with|for|on|in|and|when|if|over|that|as|where|a|the|all|since|not|without)\b|^(Test|Fuzz|Benchmark|Example)\w*[,.]`)

// TestStyle reads every source but the generated ones.
func TestStyle(t *testing.T) {
	t.Parallel()
	const root = "../.."
	sizes := map[string]bool{}
	files := token.NewFileSet()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "db" || name != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		source := must.OK(os.ReadFile(path.Join(root, name)))(t)
		file := must.OK(parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution))(t)
		for _, group := range file.Comments {
			if found := vague.FindString(strings.Join(strings.Fields(group.Text()), " ")); found != "" {
				t.Errorf("%s: a comment says %q: name what it stands for", files.Position(group.Pos()), found)
			}
		}
		test := strings.HasSuffix(name, "_test.go")
		if !test && bytes.Count(source, []byte("\n")) > maxFile {
			sizes[name] = true
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if test && claim.MatchString(f.Doc.Text()) {
				t.Errorf("%s: say what the test holds, after %s and a colon, or what it does", files.Position(f.Pos()), f.Name)
			}
			if !test && files.Position(f.End()).Line-files.Position(f.Pos()).Line >= maxFunction {
				sizes[name+" "+f.Name.Name] = true
			}
		}
		return nil
	})
	must.Succeed(t, err)
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if !slices.Contains(larger, name) {
			t.Errorf("%s is longer than %d lines of a function or %d of a file: cut it", name, maxFunction, maxFile)
		}
	}
	for _, name := range larger {
		if !sizes[name] {
			t.Errorf("%s is short enough now: take it off the list", name)
		}
	}
}
