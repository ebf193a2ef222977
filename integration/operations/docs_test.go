package operations

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/doctor"
	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// TestOperationsPage runs every block of SQL in docs/operations.md, and every line of
// shell that only calls pglimit.
func TestOperationsPage(t *testing.T) {
	t.Parallel()
	text := must.OK(os.ReadFile("../testdata/repository/docs/operations.md"))(t)
	address := testworld.NewDatabase(t)
	owner := testworld.Connect(t, address)
	app := testworld.Value[string](t, testworld.Connect(t, testworld.RuntimeRole(t, address)), "SELECT current_user")
	web := testworld.Value[string](t, testworld.Connect(t, testworld.RuntimeRole(t, address)), "SELECT current_user")
	if code, _, stderr := testworld.Pglimit(t, address, "migrate", "up", "--functions"); code != 0 {
		t.Fatal(stderr)
	}
	if code, _, stderr := testworld.Pglimit(t, address, "policy", "set", "login", "--limit", "5", "--period", "1m"); code != 0 {
		t.Fatal(stderr)
	}
	database := testworld.Value[string](t, owner, "SELECT quote_ident(current_database())")
	blocks, lines := 0, 0
	for _, m := range regexp.MustCompile("(?s)```(sh|sql)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		testworld.Exec(t, owner, `DELETE FROM pglimit_token_bucket`) // blocks that operators run find these keys
		for _, key := range []string{"alice", "203.0.113.7"} {
			if code, _, stderr := testworld.Pglimit(t, address, "allow", "--policy", "login", key); code != 0 {
				t.Fatal(stderr)
			}
		}
		if m[1] == "sql" {
			blocks++
			sql := strings.NewReplacer("ROLE app IN DATABASE shop", "ROLE "+app+" IN DATABASE "+database).Replace(m[2])
			for statement := range strings.SplitSeq(sql, ";\n") {
				if strings.TrimSpace(statement) == "" {
					continue
				}
				if _, err := owner.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Errorf("%s: %v", statement, err)
				}
			}
			continue
		}
		for line := range strings.Lines(m[2]) {
			line, _, _ = strings.Cut(line, "#")
			line = strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "|| true"))
			call, ok := strings.CutPrefix(line, "pglimit ")
			if !ok || strings.ContainsAny(call, "<>|") || strings.Contains(call, "limits.yaml") {
				continue
			}
			lines++
			args := words(call)
			for i, a := range args {
				switch {
				case a == "app":
					args[i] = app
				case a == "web":
					args[i] = web
				case strings.Contains(a, "durability"):
					args[i] = "clock" // the tests' server runs without fsync
				}
			}
			if len(args) < 3 && args[0] == "doctor" { // all checks, of which fsync fails
				args = append(args, "--skip", "durability,connections")
			}
			if code, stdout, stderr := testworld.Pglimit(t, address, args...); code != 0 {
				t.Errorf("pglimit %s: exit code %d\n%s%s", strings.Join(args, " "), code, stdout, stderr)
			}
		}
	}
	if blocks < 8 || lines < 35 {
		t.Errorf("%d blocks of SQL and %d lines", blocks, lines)
	}
	// The names that the page gives to --only are those of checks.
	for _, m := range regexp.MustCompile(`--only ([a-z,]+)`).FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(m[1], ",") {
			if !strings.Contains(fmt.Sprint(doctor.Names()), name) {
				t.Errorf("--only %s", name)
			}
		}
	}
}

// words splits a line of shell with double quotes.
func words(line string) (all []string) {
	for _, m := range regexp.MustCompile(`"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		all = append(all, m[1]+m[2])
	}
	return all
}
