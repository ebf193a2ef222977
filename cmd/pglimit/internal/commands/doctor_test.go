package commands

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/doctor"
)

func TestRender(t *testing.T) {
	t.Parallel()
	because := doctor.Check{Verdict: doctor.Unchecked, Message: "as grants failed", NextStep: "see grants"}
	due, future := because, because
	due.Name, future.Name = "due", "future"
	report := doctor.Report{Took: 12345 * time.Microsecond, Checks: []doctor.Check{
		{Name: "grants", Verdict: doctor.Fail, Message: "bad\x1b[2J\u202e\nname", Fix: "GRANT x", FixAs: "role o"},
		{Name: "hot", Verdict: doctor.Warn, Message: "so so", Fix: "do this", NextStep: "look again", Details: []string{"table a", "do this"}},
		due, future,
		{Name: "server", Message: "fine", Details: []string{"hidden"}},
	}}
	const want = `fail       grants  bad\u001b[2J\u202e name
                   fix, as role o: GRANT x
warn       hot     so so
                   table a
                   fix: do this
                   next: look again
unchecked  due     as grants failed
                   so are future
                   next: see grants
ok         server  fine
1 fail, 1 warn, 2 unchecked, 1 ok, in 12ms
`
	if got := doctorText(report, false); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	colored := doctorText(report, true)
	if !strings.Contains(colored, "\x1b[32mok       \x1b[0m  server") || !strings.Contains(colored, "\x1b[1;31mfail     \x1b[0m") || strings.Contains(colored, "[2J\n") {
		t.Errorf("%q", colored)
	}
}
