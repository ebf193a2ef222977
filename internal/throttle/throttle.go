// Package throttle lets one of many events pass in a while, to log it.
package throttle

import (
	"sync"
	"sync/atomic"
	"time"
)

// Throttle lets one event pass in a while. The zero value is ready; it is safe for concurrent
// use.
type Throttle struct {
	since atomic.Int64 // events since the last that passed
	after atomic.Int64 // time of the next that passes, in Unix microseconds
}

// Next counts an event, and reports whether it passes: one every so long. since is the
// number of events from the one after the last that passed to this one.
func (t *Throttle) Next(every time.Duration) (since int64, passes bool) {
	t.since.Add(1)
	now, after := time.Now(), t.after.Load()
	if now.UnixMicro() < after || !t.after.CompareAndSwap(after, now.Add(every).UnixMicro()) {
		return 0, false
	}
	return t.since.Swap(0), true
}

// Each is a Throttle for each kind of event, of which there are few. The zero value is ready; it
// is safe for concurrent use.
type Each struct{ kinds sync.Map }

// Next is Throttle.Next for the events of a kind.
func (e *Each) Next(kind string, every time.Duration) (since int64, passes bool) {
	t, _ := e.kinds.LoadOrStore(kind, new(Throttle))
	return t.(*Throttle).Next(every)
}
