// Package modules tests which modules an application gains with the library.
package modules

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	// imported so that go test repeats the tests when these change
	_ "github.com/pglimit/pglimit/doctor"
	_ "github.com/pglimit/pglimit/httplimit"
	_ "github.com/pglimit/pglimit/janitor"
	_ "github.com/pglimit/pglimit/limiter"
	_ "github.com/pglimit/pglimit/migrations"

	"github.com/pglimit/pglimit/internal/must"
)

const library = "github.com/pglimit/pglimit"

// required lists the modules that go.mod may require. An application that adds the
// library has them all in its module list, used or not.
var required = []string{
	"github.com/dunglas/httpsfv",         // httplimit
	"github.com/felixge/httpsnoop",       // httplimit
	"github.com/hashicorp/golang-lru/v2", // limiter, httplimit
	"github.com/jackc/pgpassfile",        // pgx
	"github.com/jackc/pgservicefile",     // pgx
	"github.com/jackc/pgx/v5",            // limiter, janitor, migrations
	"github.com/jackc/puddle/v2",         // pgx
	"github.com/mfridman/interpolate",    // goose
	"github.com/pressly/goose/v3",        // migrations
	"github.com/sethvargo/go-retry",      // goose
	"go.uber.org/multierr",               // goose
	"golang.org/x/sync",                  // pgx, goose
	"golang.org/x/text",                  // pgx
	"pgregory.net/rapid",                 // property tests; it requires no other module
}

// TestModuleList checks the list of modules that an application gains.
func TestModuleList(t *testing.T) {
	t.Parallel()
	var got []string
	for _, r := range readModFile(t, "../../go.mod").Require {
		got = append(got, r.Path)
	}
	for _, path := range got {
		if !slices.Contains(required, path) {
			t.Errorf("go.mod requires %s: every application that adds the library would have it in its module list. "+
				"If only the command or tests need it, move the code that imports it to cmd/pglimit, integration or pglimittest, "+
				"which are separate modules. If the library needs it, add it to this test's list and to docs/adr.", path)
		}
	}
	for _, path := range required {
		if !slices.Contains(got, path) {
			t.Errorf("go.mod does not require %s any more: remove it from this test's list", path)
		}
	}
}

// TestCompiledModules checks which modules an application compiles with each of the
// library's packages.
func TestCompiledModules(t *testing.T) {
	t.Parallel()
	pgx := []string{"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/pgx/v5",
		"github.com/jackc/puddle/v2", "golang.org/x/sync", "golang.org/x/text"}
	for name, others := range map[string][]string{
		"limiter":    {"github.com/hashicorp/golang-lru/v2"},
		"janitor":    {"github.com/hashicorp/golang-lru/v2"},
		"httplimit":  {"github.com/dunglas/httpsfv", "github.com/felixge/httpsnoop", "github.com/hashicorp/golang-lru/v2"},
		"doctor":     {"github.com/hashicorp/golang-lru/v2", "github.com/mfridman/interpolate", "github.com/pressly/goose/v3", "github.com/sethvargo/go-retry", "go.uber.org/multierr"},
		"migrations": {"github.com/mfridman/interpolate", "github.com/pressly/goose/v3", "github.com/sethvargo/go-retry", "go.uber.org/multierr"},
	} {
		want := slices.Sorted(slices.Values(append(others, pgx...)))
		got := map[string]bool{}
		for path := range strings.Lines(string(goTool(t, "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", library+"/"+name))) {
			if path = strings.TrimSpace(path); path != "" && path != library {
				got[path] = true
			}
		}
		if got := slices.Sorted(maps.Keys(got)); !slices.Equal(got, want) {
			t.Errorf("%s is compiled with the modules\n%q, want\n%q", name, got, want)
		}
	}
}

// TestMigrationsAreSlim: who only migrates compiles what runs migrations, and nothing that
// decides, grants rights or distributes tables.
func TestMigrationsAreSlim(t *testing.T) {
	t.Parallel()
	var got []string
	for path := range strings.Lines(string(goTool(t, "list", "-deps", library+"/migrations"))) {
		if name, ours := strings.CutPrefix(strings.TrimSpace(path), library+"/"); ours {
			got = append(got, name)
		}
	}
	slices.Sort(got)
	if want := []string{"internal/migrate", "internal/printable", "internal/strangers", "migrations"}; !slices.Equal(got, want) {
		t.Errorf("migrations is compiled with %q, want %q", got, want)
	}
}

// TestNothingAtImport: a program that imports all of the library begins with next to no
// allocations. Statements, forms of policies and patterns are made at their first use.
func TestNothingAtImport(t *testing.T) {
	t.Parallel()
	self := exec.CommandContext(t.Context(), must.OK(os.Executable())(t), "-test.run=^$")
	self.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	output := string(must.OK(self.CombinedOutput())(t))
	traces := regexp.MustCompile(`(?m)^init `+library+`\S* .* (\d+) allocs$`).FindAllStringSubmatch(output, -1)
	sum := 0
	for _, trace := range traces {
		sum += must.OK(strconv.Atoi(trace[1]))(t)
	}
	if len(traces) == 0 || sum > 200 {
		t.Errorf("%d allocations in %d packages:\n%s", sum, len(traces), output)
	}
}

// TestInternalIsBelow checks that no package of internal/ imports the packages that users
// import and that are built on internal/. internal/conformance is for their tests, and only
// tests import it.
func TestInternalIsBelow(t *testing.T) {
	t.Parallel()
	const tests = library + "/internal/conformance"
	for line := range strings.Lines(string(goTool(t, "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, library+"/..."))) {
		path, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, used := range strings.Fields(imports) {
			switch {
			case strings.HasPrefix(path, tests):
			case strings.HasPrefix(used, tests):
				t.Errorf("%s imports %s, which is for tests", path, used)
			case !strings.HasPrefix(path, library+"/internal/"):
			case slices.Contains([]string{library + "/limiter", library + "/httplimit", library + "/doctor"}, used):
				t.Errorf("%s imports %s: what only the command uses belongs in cmd/pglimit/internal", path, used)
			}
		}
	}
}

// TestReleasedModulesCanBeInstalled checks that the go.mod of each module that is released
// with the library has no replace or exclude directives, which go install …@version
// refuses, and that all require one version of the library and of each other.
func TestReleasedModulesCanBeInstalled(t *testing.T) {
	t.Parallel()
	versions := map[string]bool{}
	released := []string{"client", "cmd/pglimit", "grpclimit", "otelpglimit", "pglimittest", "prompglimit", "riverlimit"} // scripts/verify has them too
	for _, dir := range released {
		path := dir + "/go.mod"
		module := readModFile(t, "../../"+path)
		if len(module.Replace)+len(module.Exclude) > 0 {
			t.Errorf("%s has %d replace and %d exclude directives, want none: go install …@version refuses them", path, len(module.Replace), len(module.Exclude))
		}
		for _, r := range module.Require {
			inside, isInside := strings.CutPrefix(r.Path, library+"/")
			if isInside && !slices.Contains(released, inside) {
				t.Errorf("%s requires %s, which is not released", path, r.Path)
			}
			if isInside || r.Path == library {
				versions[r.Version] = true
			}
		}
	}
	if len(versions) != 1 {
		t.Errorf("they require the library and each other in the versions %v, want one", slices.Sorted(maps.Keys(versions)))
	}
}

// modFile is a part of the output of go mod edit -json.
type modFile struct {
	Require          []struct{ Path, Version string }
	Replace, Exclude []json.RawMessage
}

func readModFile(t *testing.T, path string) (f modFile) {
	t.Helper()
	if _, err := os.Stat(path); err != nil { // opened so that go test repeats the test when it changes
		t.Fatal(err)
	}
	must.Succeed(t, json.Unmarshal(goTool(t, "mod", "edit", "-json", path), &f))
	return f
}

// goTool runs the Go tool without go.work, as in an application.
func goTool(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out
}
