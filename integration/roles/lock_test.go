package roles

import (
	"bufio"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/must"
)

// TestGrantsLockHeld: a role that may only connect can hold the lock of migrations. What
// waits for it names the session and the next step, and goes on when the lock is free.
func TestGrantsLockHeld(t *testing.T) {
	t.Parallel()
	address := testworld.EmptyDatabase(t)
	web := must.OK(url.Parse(testworld.RuntimeRole(t, address)))(t)
	role := web.User.Username()
	owner := must.OK(url.Parse(testworld.RuntimeRole(t, address)))(t)
	testworld.Exec(t, testworld.Connect(t, address), `REVOKE CREATE ON SCHEMA public FROM PUBLIC; GRANT CREATE ON SCHEMA public TO `+owner.User.Username())
	holder := testworld.ConnectOnce(t, web.String())
	for _, c := range []struct{ url, args, visible string }{
		{owner.String(), "up --to 7", ": if it does not migrate"}, // state and time of other roles' sessions are hidden from it
		{address, "up", ", idle since "},
		{address, "grants --apply " + role, ", idle since "},
		{address, "down --yes", ", idle since "},
	} {
		var pid int
		must.Succeed(t, holder.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM (SELECT set_config('application_name', 'it''s mine', false), pg_advisory_lock(x'70676c696d6974'::bigint)) AS held`).Scan(&pid))
		cmd := testworld.Command(t, c.url, append([]string{"migrate"}, strings.Fields(c.args)...)...)
		stderr := must.OK(cmd.StderrPipe())(t)
		must.Succeed(t, cmd.Start())
		said := make(chan string, 100)
		go func() {
			defer close(said)
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				said <- lines.Text()
			}
		}()
		line := testworld.Receive(t, said, c.args+" says that it waits")
		for _, part := range []string{"waiting for the lock of migrations", fmt.Sprintf(`process %d of role %s, application 'it''s mine'%s`, pid, role, c.visible), fmt.Sprintf("run SELECT pg_terminate_backend(%d)", pid)} {
			if !strings.Contains(line, part) {
				t.Errorf("%s: %q lacks %q", c.args, line, part)
			}
		}
		must.OK(holder.Exec(t.Context(), `SELECT pg_advisory_unlock_all()`))(t)
		for line := range said {
			if strings.Contains(line, "waiting") {
				t.Errorf("%s: again: %s", c.args, line)
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
