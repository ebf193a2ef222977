package limiter

import (
	"context"
	"math"
	"sync/atomic"
	"time"
)

// holdWatch spares denials the look for expired holds of their key while no
// hold of any key can have expired: none lasts for less than minTTL, so one look
// at all of them is good for that long.
type holdWatch struct {
	start time.Time
	until atomic.Int64 // microseconds since start; quiet before it
}

func newHoldWatch() *holdWatch { return &holdWatch{start: time.Now()} }

func (w *holdWatch) quiet() bool { return time.Since(w.start).Microseconds() < w.until.Load() }

// look asks when the next hold expires. A hold that is made after the answer
// expires minTTL later at the soonest; one that another transaction had made
// and not committed yet may be overlooked until then.
func (w *holdWatch) look(ctx context.Context, s store) error {
	asked := time.Since(w.start).Microseconds()
	wait, err := s.nextDue(ctx)
	if err == nil {
		w.until.Store(asked + min(wait, minTTL.Microseconds()))
	}
	return err
}

// noHold is how long until the next hold expires where there is none.
const noHold = math.MaxInt64
