package migrations

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestObjects: the SQL of both sets gives the objects that the migrations create.
func TestObjects(t *testing.T) {
	t.Parallel()
	names := func(s *Set) (all []string) {
		t.Helper()
		for _, o := range s.objects() {
			all = append(all, fmt.Sprint(o.version, " ", o))
		}
		return all
	}
	tables := names(Tables)
	for _, want := range []string{"1 pglimit_gcra", "1 pglimit_gcra_expires", "1 pglimit_reservation_idempotency", "1 pglimit_lease", "1 pglimit_rebase", "2 fillfactor of pglimit_sliding_window_log", "3 pglimit_gcra_now"} {
		if !slices.Contains(tables, want) {
			t.Errorf("no %s in %q", want, tables)
		}
	}
	functions := names(Functions)
	for _, want := range []string{"1 pglimit.token_bucket", "1 pglimit.reset", "1 pglimit_ask._find", "1 pglimit_ask.allow"} {
		if !slices.Contains(functions, want) {
			t.Errorf("no %s in %q", want, functions)
		}
	}
	for _, all := range [][]string{tables, functions} {
		if unique := slices.Compact(slices.Sorted(slices.Values(all))); len(unique) != len(all) || len(all) < 20 || strings.Contains(strings.Join(all, " "), " if ") {
			t.Errorf("%q", all)
		}
	}
}
