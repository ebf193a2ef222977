package style

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/internal/must"
)

// Verbs that some places have not.
var (
	nowhereElse = []string{"Wait", "WaitAll", "Undo"} // the first two sleep in the caller's process, and Undo needs unexported fields of a Result
	sleeping    = nowhereElse[:2]
)

// verbPlaces are the places of every verb, in the order of "Adding a verb" in
// docs/architecture.md. text is a regexp: NAME stands for AllowUpTo, SNAKE for allow_up_to and
// KEBAB for allow-up-to.
var verbPlaces = []struct {
	file, text string
	without    []string
}{
	{"limiter/*.go", `\) NAME\(`, nil},
	{"limiter/observation.go", `Verb += "SNAKE"`, nil},
	{"limiter/answers.go", `name: VerbNAME\b`, nil},
	{"limiter/example*_test.go", `\.NAMEN?\(`, nil},
	{"internal/conformance/verbs/verbs.go", `\tNAME\(`, sleeping},
	{"internal/conformance/verbs/call.go", `d\.NAMEN?\(`, sleeping},
	{"integration/history/model/op.go", `\tNAME +Verb`, sleeping[1:]},
	{"integration/history/client.go", `model\.NAME\b`, sleeping[1:]},
	{"integration/testworld/functionway.go", `\) NAMEN?\(`, nowhereElse},
	{"migrations/functions/00001_functions.sql", `FUNCTION pglimit\.SNAKE\(`, nowhereElse},
	{"client/verbs.go", `\) NAME\(`, nowhereElse},
	{"cmd/pglimit/internal/serve/httpapi/handler.go", `"/v1/KEBAB"`, nowhereElse},
	{"cmd/pglimit/internal/serve/httpapi/openapi.yaml", `/v1/KEBAB:`, nowhereElse},
	{"cmd/pglimit/internal/commands/*.go", `"KEBAB `, nowhereElse[1:]},
	{"docs/library.md", "`NAME`", nil},
	{"docs/command.md", "`KEBAB`", nowhereElse[1:]},
	{"docs/sql.md", `\bSNAKE\b`, nowhereElse[1:2]},
}

// TestVerbs: each verb is in all its places, and docs/architecture.md names them.
func TestVerbs(t *testing.T) {
	t.Parallel()
	const root = "../.."
	read := func(pattern string) (text string) {
		for _, file := range must.OK(filepath.Glob(path.Join(root, pattern)))(t) {
			text += string(must.OK(os.ReadFile(file))(t))
		}
		return text
	}
	_, adding, _ := strings.Cut(read("docs/architecture.md"), "## Adding a verb")
	adding, _, _ = strings.Cut(adding, "\n## ")
	var names []string
	for _, found := range regexp.MustCompile(`\tVerb(\w+) +Verb = `).FindAllStringSubmatch(read("limiter/observation.go"), -1) {
		names = append(names, found[1])
	}
	if len(names) < 16 {
		t.Fatalf("limiter/observation.go has the verbs %v", names)
	}
	for _, place := range verbPlaces {
		text, dir := read(place.file), path.Dir(place.file)
		if !strings.Contains(adding, "`"+place.file+"`") && !strings.Contains(adding, "`"+dir+"`") && !strings.Contains(adding, path.Base(place.file)+"]") {
			t.Errorf(`docs/architecture.md, "Adding a verb", does not name %s`, place.file)
		}
		for _, name := range names {
			snake := strings.ToLower(regexp.MustCompile(`\B[A-Z]`).ReplaceAllString(name, "_$0"))
			want := strings.NewReplacer("NAME", name, "SNAKE", snake, "KEBAB", strings.ReplaceAll(snake, "_", "-")).Replace(place.text)
			if has := regexp.MustCompile(want).MatchString(text); has == slices.Contains(place.without, name) {
				t.Errorf("%s: has %s: %v; see verbPlaces", place.file, want, has)
			}
		}
	}
}
