package contest

import (
	"strings"
	"testing"
	"time"

	"github.com/pglimit/pglimit/limiter"
)

// TestWindowsExceeded: a window that admitted more than its limit is a fault, which hides
// the wrong end of the answers that led to it.
func TestWindowsExceeded(t *testing.T) {
	t.Parallel()
	p := limiter.Policy{Name: "p", Algorithm: limiter.FixedWindow, Limit: 30, Calendar: limiter.Hour}
	at := time.Date(2026, 1, 2, 3, 30, 0, 0, time.UTC)
	for _, c := range []struct {
		units int64
		ends  time.Duration
		want  string
	}{
		{30, 30 * time.Minute, ""},
		{30, time.Minute, "ends its window at"},
		{31, 30 * time.Minute, "the window that begins at"},
		{31, time.Minute, "the window that begins at"},
	} {
		books := &tally{plans: []limiter.Policy{p}}
		books.inWindow(p, limiter.Result{At: at, Level: 1, ResetAfter: c.ends}, 1, true)
		books.inWindow(p, limiter.Result{At: at, Level: 30, ResetAfter: c.ends}, c.units-1, true)
		books.inWindow(p, limiter.Result{At: at, Level: 30, ResetAfter: c.ends}, 1, false)
		books.checkWindows()
		if (c.want == "") != (books.fault == "") || !strings.Contains(books.fault, c.want) {
			t.Errorf("%d units, end after %v: %q, want %q", c.units, c.ends, books.fault, c.want)
		}
	}
}
