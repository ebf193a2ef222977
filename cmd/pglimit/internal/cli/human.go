package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

// Decision returns a decision as a sentence.
func Decision(r limiter.Result) string {
	switch {
	case !r.Allowed && r.RetryAfter == limiter.Never && r.Reason == limiter.ReasonBlocked && r.Policy.Algorithm == limiter.Balance:
		return "denied (blocked): the balance has too few units too"
	case !r.Allowed && r.RetryAfter == limiter.Never && r.Reason == limiter.ReasonBlocked:
		return "denied (blocked): the block has no end"
	case !r.Allowed && r.RetryAfter == limiter.Never && r.Policy.Algorithm == limiter.Balance:
		return "denied: " + Balance(r)
	case r.Allowed && r.Policy.Algorithm == limiter.Balance:
		return "allowed: " + Balance(r)
	case !r.Allowed && r.RetryAfter == limiter.Never:
		return "denied: the cost is more than the limit ever allows; the burst is " + Units(r.Burst)
	case !r.Allowed:
		return fmt.Sprintf("denied (%s): retry after %s", r.Reason, Span(r.RetryAfter))
	case r.Delay > 0:
		return fmt.Sprintf("allowed: in %s, %s", Span(r.Delay), Left(r))
	}
	return fmt.Sprintf("allowed: %s, reset after %s", Left(r), Span(r.ResetAfter))
}

// Floored returns the end of the Decision of a request whose cost does not fit above its Floor.
func Floored(request limiter.Request, r limiter.Result) string {
	if request.Floor > 0 && !r.Allowed && r.RetryAfter == limiter.Never && r.Reason == limiter.ReasonLimit {
		return ", and the floor keeps " + Units(request.Floor*r.Burst) + " of it free"
	}
	return ""
}

// Left returns what a key has left of its burst, or of its balance.
func Left(r limiter.Result) string {
	if r.Policy.Algorithm == limiter.Balance {
		return Balance(r)
	}
	return fmt.Sprintf("%s of %s remaining", Units(r.Remaining), Units(r.Burst))
}

// Balance returns what a balance has left, and owes.
func Balance(r limiter.Result) string {
	text := Units(r.Remaining) + " remaining"
	if r.Burst > 0 || r.Level > 0 {
		text += fmt.Sprintf(", %s of %s owed", Units(r.Level), Units(r.Burst))
	}
	return text
}

// Span returns a time to wait, rounded up to what matters to people: whole seconds from a
// minute on, else hundredths of a second, or milliseconds. JSON has it exactly.
func Span(d time.Duration) string {
	unit := time.Millisecond
	switch {
	case d >= time.Minute:
		unit = time.Second
	case d >= time.Second:
		unit = 10 * time.Millisecond
	}
	if rest := d % unit; rest > 0 && d < limiter.Never-unit {
		d += unit - rest
	}
	return duration.Format(d)
}

// Moment returns t in this machine's time zone, as all texts have it. JSON has UTC.
func Moment(t time.Time) string { return t.Local().Format(time.RFC3339) }

// Units returns v with up to six decimal places.
func Units(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(v, 'f', 6, 64), "0"), ".")
}

// Aligned returns text with the cells of its lines, which tabs end, in columns.
func Aligned(text string) string {
	var aligned strings.Builder
	w := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	_, _ = io.WriteString(w, text) // to a Builder
	_ = w.Flush()
	return aligned.String()
}
