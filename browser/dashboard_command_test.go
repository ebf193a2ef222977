package browser

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/limiter"
)

// TestDashboardCommand operates the command over a database: a key is found by its name,
// blocked, unblocked and reset, and the limiter follows.
func TestDashboardCommand(t *testing.T) {
	t.Parallel()
	database := migrated.New(t)
	pool, err := pgxpool.New(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := limiter.New(pool, &limiter.Config{DisableDenyCache: true})
	if err != nil {
		t.Fatal(err)
	}
	p := limiter.Policy{Name: "login", Algorithm: limiter.SlidingWindowLog, Limit: 10, Period: 1000 * time.Hour}
	level := func() limiter.Result {
		t.Helper()
		r, err := l.Check(t.Context(), p, "alice", 0)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := l.Charge(t.Context(), p, "alice", 7); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(command(t), "dashboard", "--addr", "localhost:0", "--json", "--write")
	c.Env = append(os.Environ(), "DATABASE_URL="+database)
	c.Stderr = os.Stderr
	stdout, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(os.Interrupt)
		if err := c.Wait(); err != nil {
			t.Errorf("the interrupted command ended with %v", err)
		}
	})
	var at struct{ URL string }
	if err := json.NewDecoder(stdout).Decode(&at); err != nil {
		t.Fatal(err)
	}
	b := Open(t, chromium, at.URL)
	b.complete()
	b.Wait("no denials, and why", `$("main").textContent.includes("Config.DenialLog")`)
	b.Wait("the doctor's checks", `$("main").textContent.includes("checks")`)
	for _, page := range []string{"#/policies", "#/keys", "#/doctor"} {
		b.visit(page)
	}
	b.Run("find the key", `$("#find-key").value = "alice"; $("#find").requestSubmit()`)
	b.Wait("its row", `$("main").textContent.includes("7 of 10")`)
	b.Click("[data-do=block][data-policy]")
	b.Click("#ask-yes")
	b.Wait("blocked", `$("main .tag.bad")`)
	if r := level(); r.Reason != limiter.ReasonBlocked || r.Level != 7 {
		t.Errorf("blocked: %+v", r)
	}
	b.Click("[data-do=unblock]")
	b.Wait("unblocked", `!$("main .tag.bad")`)
	if r := level(); r.Reason != "" || r.Level != 7 {
		t.Errorf("unblocked: %+v", r)
	}
	b.Click("[data-do=reset]")
	b.Click("#ask-yes")
	b.Wait("reset", `$("main").textContent.includes("The key has no row")`)
	if r := level(); r.Level != 0 {
		t.Errorf("reset: %+v", r)
	}
}
