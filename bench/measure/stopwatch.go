package measure

import (
	"errors"
	"time"

	"github.com/pglimit/pglimit/bench/proc"
)

// stopwatch measures the processor time used during some time. Without a clock, or where
// the clock is not supported, it measures nothing.
type stopwatch struct {
	clock   proc.Clock
	used    time.Duration
	elapsed time.Duration
	began   time.Time
}

func (w *stopwatch) start() error {
	used, began, err := w.read()
	w.used, w.began = -used, began
	return err
}

func (w *stopwatch) stop() error {
	used, ended, err := w.read()
	w.used, w.elapsed = w.used+used, ended.Sub(w.began)
	return err
}

// read returns the clock's time, and the moment that it belongs to: the middle of the
// reading.
func (w *stopwatch) read() (used time.Duration, at time.Time, err error) {
	at = time.Now()
	if w.clock == nil {
		return 0, at, nil
	}
	used, err = w.clock()
	if errors.Is(err, errors.ErrUnsupported) {
		w.clock, err = nil, nil
	}
	return used, at.Add(time.Since(at) / 2), err
}

// per returns the processor time per decision at the sample's rate, or Unknown.
func (w *stopwatch) per(s Sample) float64 {
	if w.clock == nil || w.elapsed <= 0 {
		return Unknown
	}
	return float64(w.used) / w.elapsed.Seconds() / s.PerSecond()
}
