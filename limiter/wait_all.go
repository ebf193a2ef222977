package limiter

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// WaitAll is AllowAll that sleeps until the turn of all asks: the longest Delay.
// Those of a LeakyBucketQueue may so be asked for beside other limits.
//
// An ask whose turn would come after ctx's deadline denies the whole, at once. When
// ctx ends WaitAll returns ctx's error. Places in queues then go back where nobody
// has queued behind, and of the other asks what Undo would give back, when
// those of DoWait do; Config.Timeout bounds that for each ask.
func (l *Limiter) WaitAll(ctx context.Context, asks ...Ask) (Results, error) {
	asks = slices.Clone(asks) // which are the caller's, and may be needed for longer
	w := &places{within: left(ctx)}
	all, err := l.engine.all(ctx, asks, w)
	if err != nil {
		return all, err
	}
	delay := time.Duration(0)
	for i := range all.Each {
		delay = max(delay, all.Each[i].Delay)
	}
	if sleep(ctx, delay) {
		return all, nil
	}
	l.engine.leaving.RLock()
	defer l.engine.leaving.RUnlock()
	l.engine.leaveAll(ctx, asks, w)
	return Results{Binding: -1}, fmt.Errorf("pglimit: %w", ctx.Err())
}

// places are what a WaitAll takes.
type places struct {
	within time.Duration // how long it can wait
	joints []*joint
}

// wanted notes what is asked for: in queues, room for what has its turn in time.
func (w *places) wanted(joints []*joint, asks []Ask) {
	w.joints = joints
	for _, j := range joints {
		if j.q.algorithm == LeakyBucketQueue {
			j.ahead = float64(w.within.Microseconds()) * j.q.Leak
			last := j.parts[len(j.parts)-1].index
			j.q.room = min(j.q.Capacity, j.ahead+asks[last].Cost)
		}
	}
}

// hurried tells whether less may be in a queue than it holds.
func (j *joint) hurried() bool { return j.q.room < j.q.Capacity }

// leaveAll gives back what was granted to a WaitAll, as well as it can.
func (e *engine) leaveAll(ctx context.Context, asks []Ask, w *places) {
	for _, j := range w.joints {
		ask := asks[j.parts[0].index]
		if j.q.algorithm == LeakyBucketQueue {
			e.giveBack(ctx, ask, &j.q, j.outcome.ticket)
			continue
		}
		q, g := j.q, j.outcome.view.Counted(j.outcome.updatedAt)
		q.cost, q.count = 1, q.units
		e.undo(ctx, ask, &q, func(ctx context.Context) (outcome, error) { return e.store.undo(ctx, &q, g) })
	}
}
