package commands

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/doctor"
)

func TestRender(t *testing.T) {
	t.Parallel()
	report := doctor.Report{Took: 12345 * time.Microsecond, Checks: []doctor.Check{
		{Name: "server", Message: "fine", Details: []string{"hidden"}},
		{Name: "hot", Verdict: doctor.Warn, Message: "so so", Fix: "do this", Details: []string{"table a", "do this"}},
		{Name: "grants", Verdict: doctor.Fail, Message: "bad\x1b[2J\u202e\nname", Fix: "GRANT x"},
	}}
	const want = `ok    server  fine
warn  hot     so so
              table a
              fix: do this
fail  grants  bad\u001b[2J\u202e name
              fix: GRANT x
1 ok, 1 to improve, 1 failed, in 12ms
`
	if got := doctorText(report, false); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	colored := doctorText(report, true)
	if !strings.Contains(colored, "\x1b[32mok  \x1b[0m  server") || !strings.Contains(colored, "\x1b[1;31mfail\x1b[0m") || strings.Contains(colored, "[2J\n") {
		t.Errorf("%q", colored)
	}
}
