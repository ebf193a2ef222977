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

	"cmd/pglimit/internal/playground/hub_test.go TestHubSampling",
	"cmd/pglimit/internal/ratelimit/run_test.go TestRun",
	"cmd/pglimit/test/browser/dashboard_edit_test.go TestDashboardEdit",
	"cmd/pglimit/test/browser/keyboard_test.go testKeyboard",
	"cmd/pglimit/test/browser/plot_test.go testPlot",
	"cmd/pglimit/test/browser/replay_test.go TestReplay",
	"cmd/pglimit/test/command/playground_test.go TestPlayground",
	"cmd/pglimit/test/command/programs_test.go TestPrograms",
	"cmd/pglimit/test/command/verbs_test.go TestCommandAttempts",
	"cmd/pglimit/test/dashboard/edit_test.go TestEdit",
	"cmd/pglimit/test/image/run_test.go run",
	"cmd/pglimit/test/inspect/find_test.go TestStrangersInInspect",
	"cmd/pglimit/test/inspect/view_test.go TestNoDeadlocks",
	"cmd/pglimit/test/serve/client_test.go TestClient",
	"cmd/pglimit/test/serve/command_test.go TestServe",
	"cmd/pglimit/test/serve/openapi_test.go TestOpenAPI",
	"cmd/pglimit/test/serve/ratelimit_test.go TestServeRateLimit",
	"cmd/pglimit/test/stores/sql_test.go TestIdempotencyKey",
	"cmd/pglimit/test/stores/stores_test.go TestStores",
	"deploy/test/run_test.go start",
	"examples/shop/shop_test.go TestShop",
	"integration/cluster/distribute_test.go TestCitusDistribute",
	"integration/cluster/server_test.go TestCitusServer",
	"integration/crash/breaker_test.go TestBreakerOnAStoppedServer",
	"integration/decide/attempts_test.go TestAttemptsAtOnce",
	"integration/decide/balances_test.go TestBalanceGivesBackOnce",
	"integration/decide/binary_test.go TestBinaryInUse",
	"integration/decide/slots_test.go TestSlotsAtOnce",
	"integration/decide/slots_together_test.go TestSlotsTogether",
	"integration/decide/sql_rules_test.go TestStatementsAreRoutable",
	"integration/functions/id_test.go TestFunctionsReadIDsAsGo",
	"integration/functions/moving_test.go TestMovingCountsUnderTraffic",
	"integration/marks/ledger_test.go TestLedgerOfEachVerb",
	"integration/history/history_test.go TestAnswersAreThoseOfOneOrder",
	"integration/janitor/status_test.go TestStatusOfSweeps",
	"integration/keys/bound_test.go TestFlood",
	"integration/migrate/errors_test.go TestMigrateErrorsSayWhatToDo",
	"integration/migrate/traffic_test.go TestMigrateDownUnderTraffic",
	"integration/operations/docs_test.go TestOperationsPage",
	"integration/policies/changes_test.go TestAt",
	"integration/policies/override_test.go TestInvalidRows",
	"integration/reserve/id_test.go TestReservationsWithOneStoredID",
	"integration/reserve/races_test.go TestReserveEndsOnce",
	"integration/reserve/upto_test.go TestEstimateOfEveryWay",
	"integration/roles/asker_test.go TestGrantsBoundAnAsker",
	"integration/roles/owners_test.go TestStrangersTablesInFront",
	"integration/router/router_test.go TestRouterKeepsTheBound",
	"integration/share/floor_test.go TestFloorsOfManyCallers",
	"integration/share/held_test.go stallsNobody",
	"integration/share/model_test.go request",
	"integration/share/share_test.go TestShareOneTransaction",
	"integration/tx/sqltx_test.go TestTxConflicts",
	"integration/wait/turns_test.go TestWaitTakesAnAbandonedTurn",
	"internal/store/postgres/statement/binary_test.go TestBinaryAsSqlc",
	"internal/store/postgres/statement/failure_test.go TestBinaryLost",
	"internal/store/postgres/statement/server_test.go serve",
	"limiter/slots_test.go TestSlotsAreExact",
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
			if lines(files, f)-rows(files, f, test) > maxFunction {
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

// lines returns the number of lines of a node.
func lines(files *token.FileSet, n ast.Node) int {
	return files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1
}

// rows returns the number of lines in a test's tables: the literals that it ranges over or
// returns.
func rows(files *token.FileSet, f *ast.FuncDecl, test bool) (n int) {
	ast.Inspect(f, func(node ast.Node) bool {
		var table ast.Expr
		switch node := node.(type) {
		case *ast.RangeStmt:
			table = node.X
		case *ast.ReturnStmt:
			table = slices.Concat(node.Results, []ast.Expr{nil})[0]
		}
		if table, ok := table.(*ast.CompositeLit); ok && test {
			n += lines(files, table) - 1
		}
		return true
	})
	return n
}
