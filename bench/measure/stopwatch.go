package measure

import (
	"errors"
	"time"

	"github.com/pglimit/pglimit/bench/proc"
)

// spent begins to measure processor time. stop returns the use of each second in
// nanoseconds; Unknown without a clock, or where the system does not support it.
func spent(clock proc.Clock) (stop func() (perSecond float64, err error), err error) {
	if clock == nil {
		return unknown, nil
	}
	// A reading belongs to the middle of its time.
	read := func() (used time.Duration, at time.Time, err error) {
		begin := time.Now()
		used, err = clock()
		return used, begin.Add(time.Since(begin) / 2), err
	}
	before, began, err := read()
	if errors.Is(err, errors.ErrUnsupported) {
		return unknown, nil
	}
	return func() (float64, error) {
		after, ended, err := read()
		return float64(after-before) / ended.Sub(began).Seconds(), err
	}, err
}

func unknown() (float64, error) { return Unknown, nil }
