package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/pglimit/pglimit/internal/duration"
	"github.com/pglimit/pglimit/limiter"
)

// Decision returns a decision as a sentence.
func Decision(r limiter.Result) string {
	switch {
	case !r.Allowed && r.RetryAfter == limiter.Never:
		return "denied: the cost is above the burst of " + Units(r.Burst)
	case !r.Allowed:
		return fmt.Sprintf("denied (%s): retry after %s", r.Reason, duration.Format(r.RetryAfter))
	case r.Delay > 0:
		return fmt.Sprintf("allowed: in %s, %s of %s remaining", duration.Format(r.Delay), Units(r.Remaining), Units(r.Burst))
	}
	return fmt.Sprintf("allowed: %s of %s remaining, reset after %s", Units(r.Remaining), Units(r.Burst), duration.Format(r.ResetAfter))
}

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
