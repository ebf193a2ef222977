package command

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
)

// TestCommandMaxKeys: a new row that is only a block counts towards the policy's MaxKeys too, and a
// charge that has no row says why it records nothing.
func TestCommandMaxKeys(t *testing.T) {
	t.Parallel()
	database := testworld.NewDatabase(t)
	for _, c := range []struct {
		code int
		want string
		line string
	}{
		{0, "max_keys: 1", "policy set login --limit 5 --period 1h --max-keys 1"},
		{0, "allowed", "allow --policy login alice"},
		{1, "denied (keys)", "allow --policy login bob"},
		{0, "charged 0: the key has no row", "charge --policy login bob"},
		{3, "has rows for all of its 1 keys", "block --new --policy login --algorithm token_bucket bob 1h"},
		{3, "has rows for all of its 1 keys", "block --new --policy login --algorithm gcra bob 1h"}, // the same rows
		{0, "blocked bob for 1h", "block --new --policy login --algorithm fixed_window bob 1h"},
		{0, "blocked alice for 1h", "block --new --policy login --algorithm token_bucket alice 1h"},
	} {
		if code, stdout, stderr := testworld.Pglimit(t, database, strings.Fields(c.line)...); code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%s: exit code %d: %s%s; want %d and %s", c.line, code, stdout, stderr, c.code, c.want)
		}
	}
}
