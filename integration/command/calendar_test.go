package command

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/pglimit/pglimit/integration/bed"
)

// TestCommandCalendar uses --calendar with allow, and replays a log in memory and in SQL.
func TestCommandCalendar(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	flags := strings.Fields("--algorithm fixed_window --limit 1000 --calendar month --time-zone Europe/Vienna --json")
	var answers [2]struct {
		Allowed   bool
		Remaining float64
	}
	for i := range answers {
		code, stdout, stderr := bed.Pglimit(t, address, append([]string{"allow", "alice", "--cost", "600"}, flags...)...)
		if err := json.Unmarshal([]byte(stdout), &answers[i]); err != nil || code != i {
			t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
		}
	}
	if a := answers; !a[0].Allowed || a[0].Remaining != 400 || a[1].Allowed {
		t.Errorf("got %+v", a)
	}
	ends := bed.Value[time.Time](t, bed.Connect(t, address), "SELECT ends_at FROM pglimit_fixed_window_now")
	vienna, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		t.Fatal(err)
	}
	if local := ends.In(vienna); local.Day() != 1 || local.Hour() != 0 || local.Minute() != 0 {
		t.Errorf("the month ends at %v", local)
	}

	log := logFile(t, "access.log", invented(1000, 10))
	args := []string{"replay", "--algorithm", "fixed_window", "--limit", "5", "--calendar", "hour", "--time-zone", "Asia/Kathmandu", log}
	code, inMemory, stderr := bed.Pglimit(t, "", args...)
	if code != 0 || !strings.HasPrefix(inMemory, "fixed_window, 5 per hour (Asia/Kathmandu): ") {
		t.Fatalf("exit code %d: %s%s", code, inMemory, stderr)
	}
	if code, inSQL, stderr := bed.Pglimit(t, "", append(args, "--database-url", address)...); code != 0 || inSQL != inMemory {
		t.Errorf("by SQL, exit code %d: %s\nin memory: %s\n%s", code, inSQL, inMemory, stderr)
	}
}
