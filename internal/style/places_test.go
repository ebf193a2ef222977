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
	unmodelled  = []string{"WaitAll", "Grant"} // no history waits for several, and Grant is Add in them
)

// place is files that have each verb, or each field of a policy. text is a regexp: NAME stands
// for AllowUpTo, SNAKE for allow_up_to and KEBAB for allow-up-to.
type place struct {
	file, text string
	without    []string
}

var verbPlaces = []place{
	{"limiter/*.go", `\) NAME\(`, nil},
	{"limiter/observation.go", `Verb += "SNAKE"`, nil},
	{"limiter/answers.go", `name: VerbNAME\b`, nil},
	{"limiter/example*_test.go", `\.NAMEN?\(`, nil},
	{"internal/conformance/verbs/verbs.go", `\tNAME\(`, sleeping},
	{"internal/conformance/verbs/call.go", `d\.NAMEN?\(`, sleeping},
	{"integration/history/model/op.go", `\tNAME +Verb`, unmodelled},
	{"integration/history/*.go", `model\.NAME\b`, unmodelled},
	{"integration/testworld/function*.go", `\) NAMEN?\(`, nowhereElse},
	{"migrations/functions/00001_functions.sql", `FUNCTION pglimit\.SNAKE\(`, nowhereElse},
	{"client/verbs.go", `\) NAME\(`, nowhereElse},
	{"cmd/pglimit/internal/serve/httpapi/handler.go", `"/v1/KEBAB"`, nowhereElse},
	{"cmd/pglimit/internal/serve/httpapi/openapi.yaml", `/v1/KEBAB:`, nowhereElse},
	{"cmd/pglimit/internal/commands/*.go", `"KEBAB `, nowhereElse[1:]},
	{"docs/library.md", "`NAME`", nil},
	{"docs/command.md", "`KEBAB`", nowhereElse[1:]},
	{"docs/sql.md", `\bSNAKE\b`, nowhereElse[1:2]},
}

// selected is the field that selects a policy: --policy, and the page of one.
var selected = []string{"Name"}

var fieldPlaces = []place{
	{"migrations/00004_policies.sql", `\n    SNAKE(_s|_units)? `, nil},
	{"queries/policy.sql", `\bSNAKE(_s|_units)?\b`, nil},
	{"policies/record.go", `json:"SNAKE(_s|_units)?"`, nil},
	{"cmd/pglimit/internal/policyflags/flags.go", `Var\([^\n]*"KEBAB"`, selected},
	{"cmd/pglimit/internal/dashboard/web/edit.js", `\["SNAKE"`, selected},
	{"docs/sql.md", `\bSNAKE(_s|_units)?\b`, nil},
}

// TestPlaces: each verb and each field of a policy is in all its places, and
// docs/architecture.md names these.
func TestPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		section, file, name string
		least               int
		places              []place
	}{
		{"Adding a verb", "limiter/observation.go", `\tVerb(\w+) +Verb = `, 16, verbPlaces},
		{"Adding a field of a policy", "limiter/policy.go", `\t(\w+) [\w.]+ .json:"`, 15, fieldPlaces},
	} {
		_, section, _ := strings.Cut(read(t, "docs/architecture.md"), "## "+c.section)
		section, _, _ = strings.Cut(section, "\n## ")
		source, _, _ := strings.Cut(read(t, c.file), "\ntype Request struct")
		var names []string
		for _, found := range regexp.MustCompile(c.name).FindAllStringSubmatch(source, -1) {
			names = append(names, found[1])
		}
		if len(names) < c.least {
			t.Errorf("%s has %v", c.file, names)
		}
		for _, p := range c.places {
			if !strings.Contains(section, "`"+p.file+"`") && !strings.Contains(section, "`"+path.Dir(p.file)+"`") && !strings.Contains(section, path.Base(p.file)+"]") {
				t.Errorf("docs/architecture.md, %q, does not name %s", c.section, p.file)
			}
			for _, name := range names {
				p.check(t, name)
			}
		}
	}
}

// check expects a place to have a name, unless it is without that.
func (p *place) check(t *testing.T, name string) {
	snake := strings.ToLower(regexp.MustCompile(`\B[A-Z]`).ReplaceAllString(name, "_$0"))
	text := strings.NewReplacer("NAME", name, "SNAKE", snake, "KEBAB", strings.ReplaceAll(snake, "_", "-")).Replace(p.text)
	if has := regexp.MustCompile(text).MatchString(read(t, p.file)); has == slices.Contains(p.without, name) {
		t.Errorf("%s: has %s: %v; see places_test.go", p.file, text, has)
	}
}

// read returns the contents of the files that match a pattern.
func read(t *testing.T, pattern string) (text string) {
	for _, file := range must.OK(filepath.Glob(path.Join("../..", pattern)))(t) {
		text += string(must.OK(os.ReadFile(file))(t))
	}
	return text
}
