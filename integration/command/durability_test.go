package command

import (
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
)

// TestCommandDurability: the flag reaches the commit, and Durable is the default, on a
// database whose default would not wait for the disk.
func TestCommandDurability(t *testing.T) {
	t.Parallel()
	c := bed.NewCommitLog(t)
	bed.Exec(t, c.Pool, "ALTER DATABASE "+bed.Value[string](t, c.Pool, "SELECT current_database()")+" SET synchronous_commit = off")
	for flags, want := range map[string]string{"": "on", " --durability durable": "on", " --durability relaxed": "off"} {
		p := limiter.Policy{Name: "cli" + strings.ReplaceAll(flags, " ", "-")}
		for _, line := range []string{"allow allow", "charge charge", "refund charge", "check check", "wait --algorithm leaky_bucket_queue wait"} {
			if code, _, stderr := bed.Pglimit(t, c.URL, strings.Fields(line+flags+" --limit 10 --period 1000h --name "+p.Name)...); code != 0 {
				t.Errorf("%s%s: exit code %d, %s", line, flags, code, stderr)
			}
		}
		c.Expect(t, p, want, map[string]int{"allow": 1, "charge": 2, "wait": 1})
	}
}
