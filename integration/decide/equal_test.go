package decide

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

// TestTakeManyOneElementIsForAllRows: an array of one element, other than keys, means the
// same as that element for each key.
func TestTakeManyOneElementIsForAllRows(t *testing.T) {
	t.Parallel()
	pool := bed.NewPool(t)
	const now = 1_700_000_000_000_000
	statements := 0
	for name, text := range bed.Statements(t) {
		match := oneTable.FindStringSubmatch(name)
		if match == nil || match[3] != "TakeMany" {
			continue
		}
		statements++
		answers := map[string][]string{}
		for form, array := range map[string]string{"each": "ARRAY[%[1]s, %[1]s, %[1]s]", "one": "ARRAY[%s]"} {
			values := map[string]string{
				"keys": "ARRAY['c', 'a', 'b']", "policies": fmt.Sprintf(array, "'"+form+"'"), "now_us": fmt.Sprint(now), "commit": "''", "lock_timeout": "''",
			}
			for parameter, value := range map[string]string{
				"costs": "2", "counts": "4", "capacities": "7", "leaks": "1e-6", "ticks_us": "1", "periods_us": "60000000", "are_aligned": "true",
				"froms_us": "0", "turns_us": "0", "untils_us": "0", "lifetimes_us": "5", "blocks_for_us": "9",
			} {
				values[parameter] = fmt.Sprintf(array, value)
			}
			statement := sqlParameter.ReplaceAllStringFunc(upperCollation(text), func(s string) string { return values[sqlParameter.FindStringSubmatch(s)[1]] })
			bed.Exec(t, pool, statement) // a new row
			bed.Exec(t, pool, statement) // one that exists
			answers[form] = rowsOf(t, pool, tableOf.FindStringSubmatch(text)[1], form)
		}
		if fmt.Sprint(answers["each"]) != fmt.Sprint(answers["one"]) || len(answers["one"]) != 3 {
			t.Errorf("%s left\n%q with an element for each key,\n%q with one", name, answers["each"], answers["one"])
		}
	}
	if statements != 7 {
		t.Errorf("ran %d statements", statements)
	}
}

// rowsOf returns a policy's rows as texts, without the policy.
func rowsOf(t *testing.T, pool *pgxpool.Pool, table, policy string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT (to_jsonb(t) - 'policy')::text FROM "+table+" AS t WHERE policy = $1 ORDER BY key", policy)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// upperCollation restores the name of a collation, which bed.Statements returns in small letters.
func upperCollation(text string) string {
	return strings.ReplaceAll(text, `collate "c"`, `COLLATE "C"`)
}
