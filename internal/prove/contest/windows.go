package contest

import (
	"fmt"
	"time"

	"github.com/pglimit/pglimit/internal/prove/bound"
	"github.com/pglimit/pglimit/limiter"
)

// inWindow counts an answer for a key whose windows have fixed edges in the window of its
// time, and compares the end of the window in the answer with the right one.
func (t *tally) inWindow(p limiter.Policy, r limiter.Result, n int64, admitted bool) {
	begins, ends := bound.Window(p, r.At)
	if end := r.At.Add(r.ResetAfter); r.Level > 0 && !end.Equal(ends) {
		t.wrong("the answer at %s ends its window at %s instead of %s", stamp(r.At), stamp(end), stamp(ends))
	}
	if !admitted {
		return
	}
	if t.windows == nil {
		t.windows = map[int64]int64{}
	}
	t.windows[begins.UnixMicro()] += n
}

// checkWindows compares what each window admitted with its limit.
func (t *tally) checkWindows() {
	for begins, admitted := range t.windows {
		if most := t.plans[0].Limit; bound.Exceeded(float64(admitted), most) {
			// It says more than the wrong end in an answer that led to it.
			t.fault = fmt.Sprintf("the window that begins at %s admitted %d of %.0f", stamp(time.UnixMicro(begins)), admitted, most)
		}
	}
}

// stamp formats a time for a fault.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02T15:04:05.000000Z") }

// wrong records a fault, the first of a key only.
func (t *tally) wrong(format string, args ...any) {
	if t.fault == "" {
		t.fault = fmt.Sprintf(format, args...)
	}
}
