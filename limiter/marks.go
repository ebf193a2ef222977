package limiter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// maxMarks is the largest number of marks of a policy.
const maxMarks = 8

const marksHelp = "must be from 0.0001% to 100%, in rising order and at most 8, such as 80%,100%"

// marks returns the policy's marks in millionths of the burst.
func (p *Policy) marks() (marks []int64, err error) {
	if p.Marks == "" {
		return nil, nil
	}
	parts := strings.Split(p.Marks, ",")
	marks = make([]int64, len(parts))
	for i, part := range parts {
		percent, _ := strconv.ParseFloat(strings.TrimSuffix(part, "%"), 64)
		marks[i] = int64(math.Round(max(0, min(percent, 101)) * 1e4)) // 0 if it is no number
		switch {
		case len(parts) > maxMarks, i > 0 && marks[i] <= marks[i-1], marks[i] < 1, marks[i] > 1e6:
			return nil, p.bad("Marks", p.Marks, marksHelp)
		case part != strconv.FormatFloat(float64(marks[i])/1e4, 'f', -1, 64)+"%":
			return nil, p.bad("Marks", p.Marks, marksHelp+"; at most four decimals, no blanks")
		}
	}
	return marks, nil
}

func (p Policy) validateMarks() error {
	if _, err := p.marks(); err != nil {
		return err
	}
	return p.validateRecord("Marks", p.Marks)
}

// validateRecord returns an error if the policy's decisions cannot record what the field asks for.
func (p Policy) validateRecord(field, value string) error {
	switch {
	case value == "":
		return nil
	case p.Algorithm == LeakyBucketQueue, p.Algorithm == Attempts, p.Algorithm == Concurrency, p.Algorithm == Balance:
		return p.bad(field, value, fmt.Sprintf("is not for %s: leave it empty", p.Algorithm))
	case p.Lease != 0:
		return p.bad(field, value, "is not for policies with a Lease, whose units this process grants by itself: leave one of them out")
	}
	return nil
}

const (
	day         = 24 * time.Hour
	maxUsageFor = 3650 * day
)

// sums returns the sums of spent units that the database keeps for the policy.
func (p *Policy) sums() store.Sums {
	span, keep := time.Hour, 31*day
	switch p.UsageBy {
	case "":
		return store.Sums{}
	case Day:
		span, keep = day, 400*day
	}
	if p.UsageFor != 0 {
		keep = p.UsageFor
	}
	return store.Sums{Span: span.Microseconds(), Keep: keep.Microseconds()}
}

func (p Policy) validateUsage() error {
	switch least := time.Duration(p.sums().Span) * time.Microsecond; {
	case p.UsageBy != "" && p.UsageBy != Hour && p.UsageBy != Day:
		return p.bad("UsageBy", string(p.UsageBy), "must be hour or day, or empty for no sums")
	case p.UsageFor != 0 && p.UsageBy == "":
		return p.bad("UsageFor", p.UsageFor, "is for policies with UsageBy: set it to hour or day, or leave UsageFor 0")
	case p.UsageFor != 0 && (p.UsageFor < least || p.UsageFor > maxUsageFor || p.UsageFor%time.Second != 0):
		return p.bad("UsageFor", p.UsageFor, fmt.Sprintf("must be whole seconds from one %s to 3650 days, or 0", p.UsageBy))
	}
	return p.validateRecord("UsageBy", string(p.UsageBy))
}
