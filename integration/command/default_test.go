package command

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
)

// TestCommandsMeanOneRow: without --algorithm, and with --calendar alone, the verbs of one
// key use the same row.
func TestCommandsMeanOneRow(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	for _, policy := range []string{"--limit 10 --period 1000h", "--limit 10 --calendar month --name month", "--limit 10 --period 1000h --aligned --name aligned"} {
		request := func(into any, verb string) {
			t.Helper()
			bed.PglimitJSON(t, into, address, append([]string{verb, "alice"}, strings.Fields(policy)...)...)
		}
		request(new(any), "allow")
		request(new(any), "reserve")
		request(new(any), "charge")
		var checked any
		request(&checked, "check")
		var s any
		request(&s, "usage")
		// A bucket has leaked a little meanwhile.
		got := s.(map[string]any)
		spent, left := got["spent"].(float64), got["remaining"].(float64)
		if spent < 1.5 || spent > 2 || left < 7 || left > 7.5 || got["reserved"].(float64) != 1 {
			t.Errorf("%s: allowed 1, filled 1 and reserved 1; the statement says %v", policy, got)
		}
	}
}
