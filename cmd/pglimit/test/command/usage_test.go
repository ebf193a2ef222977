package command

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestCommandUsageSince: units that were spent are listed by hour and day, as JSON too, and erased
// by forget. Wrong flags are refused.
func TestCommandUsageSince(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	run := func(code int, want string, args ...string) {
		t.Helper()
		got, stdout, stderr := testworld.Pglimit(t, database, args...)
		if got != code || !strings.Contains(stdout+stderr, want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", args, got, stdout, stderr, code, want)
		}
	}
	run(2, "UsageBy", "policy", "set", "spend", "--limit", "100", "--period", "30d", "--usage-by", "week")
	run(2, "UsageFor", "policy", "set", "spend", "--limit", "100", "--period", "30d", "--usage-for", "90d")
	run(0, "spend", "policy", "set", "spend", "--limit", "100", "--period", "30d", "--algorithm", "fixed_window", "--usage-by", "hour", "--usage-for", "90d")
	run(0, `"usage_for": "90d"`, "policy", "get", "spend", "--json")
	run(0, "no usage is recorded", "usage", "--policy", "spend", "acme", "--since", "1d")
	run(0, "allowed", "allow", "--policy", "spend", "--cost", "30", "acme")
	run(0, "gave back 10", "refund", "--policy", "spend", "--cost", "10", "acme")
	run(0, "20  ########################################", "usage", "--policy", "spend", "acme", "--since", "1d", "--by", "day")
	run(0, `"units": 20`, "usage", "--policy", "spend", "acme", "--since", "7d", "--json")
	run(2, "use hour or day", "usage", "--policy", "spend", "acme", "--since", "7d", "--by", "week")
	run(2, "add --since", "usage", "--policy", "spend", "acme", "--by", "day")
	run(2, "must be positive", "usage", "--policy", "spend", "acme", "--since", "-1d")
	run(0, "1 sum of usage", "forget", "acme", "--yes")
	run(0, "no usage is recorded", "usage", "--policy", "spend", "acme", "--since", "1d")
}
