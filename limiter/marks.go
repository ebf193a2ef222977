package limiter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
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
	switch _, err := p.marks(); {
	case err != nil:
		return err
	case p.Marks == "":
		return nil
	case p.Algorithm == LeakyBucketQueue, p.Algorithm == Attempts, p.Algorithm == Concurrency, p.Algorithm == Balance:
		return p.bad("Marks", p.Marks, fmt.Sprintf("%s has no marks: leave it empty", p.Algorithm))
	case p.Lease != 0:
		return p.bad("Marks", p.Marks, "is not for policies with a Lease, whose units this process grants by itself: leave one of them out")
	}
	return nil
}
