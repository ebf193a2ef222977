package functions

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// TestFunctionsDocs runs the examples of docs/sql.md for psql unchanged, and the calls
// inside the other languages' snippets.
func TestFunctionsDocs(t *testing.T) {
	t.Parallel()
	data := must.OK(os.ReadFile("../testdata/repository/docs/sql.md"))(t)
	text := string(data)
	pool := testworld.FunctionsPool(t)
	testworld.Exec(t, pool, `CREATE TABLE orders (account text, cents bigint)`)
	hold := ""
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(text, -1) {
		sql := strings.ReplaceAll(block[1], ":'reservation'", "'"+hold+"'") // psql's variables
		sql = strings.ReplaceAll(sql, ":'reservations'", "'"+hold+"'")
		ran++
		if strings.Contains(sql, "pglimit.reserve") {
			var allowed bool
			column := regexp.MustCompile(`reservations?\b`).FindString(sql)
			if err := pool.QueryRow(t.Context(), `SELECT allowed, `+column+`::text FROM (`+strings.TrimRight(sql, ";\n")+`) AS asked`).Scan(&allowed, &hold); err != nil || !allowed {
				t.Fatalf("%s: %v, allowed %v", sql, err, allowed)
			}
			continue
		}
		if _, err := pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if ran != 23 {
		t.Errorf("ran %d blocks, want 23", ran)
	}
	if n := testworld.Value[int](t, pool, `SELECT count(*) FROM orders`); n != 2 {
		t.Errorf("%d orders, want 2", n)
	}
	if left := testworld.Value[float64](t, pool, `SELECT remaining FROM pglimit.check('budget', 'acme', 0)`); left != 100000-2*1299-1730 {
		t.Errorf("%v remain of the budget", left)
	}
	calls := regexp.MustCompile(`(?s)SELECT allowed, retry_after_s\s+FROM (pglimit\.allow\('budget', .*?\))`).FindAllStringSubmatch(text, -1)
	if len(calls) != 3 {
		t.Errorf("%d calls from other languages, want 3", len(calls))
	}
	for i, call := range calls {
		places := strings.NewReplacer(":key", "'k'", ":cents", "40000", "$1", "'k'", "$2", "40000")
		sql := places.Replace(call[1])
		sql = strings.Replace(strings.Replace(sql, "%s", "'k'", 1), "%s", "40000", 1)
		if got := testworld.Value[bool](t, pool, `SELECT allowed FROM `+sql); got != (i < 2) {
			t.Errorf("call %d: allowed %v: %s", i, got, sql)
		}
	}
}
