package waiting

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglimit/pglimit/internal/store"
)

// Patience is how long a statement waits for a row's lock. After that the row counts as
// locked and is set aside, so that its neighbours need not wait.
const Patience = 10 * time.Millisecond

// Lane has the keys whose rows other transactions have locked, with the requests that
// wait for them. It sends few of them at a time, whose statements wait for the locks,
// while all others continue. It is safe for concurrent use.
type Lane struct {
	patient chan struct{}
	longest time.Duration
	// A wait for a lock ends so long before the caller's time does: a caller that leaves
	// has then consumed nothing.
	margin time.Duration

	held   atomic.Int64 // keys
	holds  atomic.Int64 // Holds
	mu     sync.Mutex
	idle   sync.Cond // nothing waits
	locked map[Slot]*lockedKey
	turns  []*lockedKey // those that wait for their turn
	active int          // goroutines that send
}

// ErrGone: a Task was not sent, since its caller has gone or has its answer.
var ErrGone = errors.New("not sent")

// Task is a request in a Lane.
type Task interface {
	// Try sends the request. Its statements wait for locks for wait at most. It returns
	// store.ErrLocked if a row stayed locked, and ErrGone if it did not send it. If not,
	// the request has its answer.
	Try(wait time.Duration) error
	// Left returns how long the caller will wait; it is not positive if it has gone.
	Left() time.Duration
	// Again sends the request as usual: the key is free, or nobody waits for its lock.
	Again()
}

type lockedKey struct {
	slot  Slot
	tasks []Task
	wait  time.Duration // how long the lane last waited for the row
}

// longestWait bounds one wait for a lock. It is below PostgreSQL's default
// deadlock_timeout, so that a wait ends before the server looks for deadlocks.
const longestWait = 900 * time.Millisecond

// NewLane returns a Lane whose statements take a place in patient, for callers that wait
// for timeout, if that is positive. An eighth of it is left for the answer.
func NewLane(patient chan struct{}, timeout time.Duration) *Lane {
	l := &Lane{patient: patient, longest: longestWait, margin: max(0, timeout/8), locked: map[Slot]*lockedKey{}}
	l.idle.L = &l.mu
	return l
}

// Waiting returns the number of requests that wait for the key k, if that is locked.
func (l *Lane) Waiting(k Slot) int {
	if l.held.Load() == 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h := l.locked[k]; h != nil {
		return len(h.tasks)
	}
	return 0
}

// Join makes t wait behind the others for the key k if that is locked, and reports
// whether it is.
func (l *Lane) Join(k Slot, t Task) bool {
	if l.held.Load() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.locked[k]
	if h != nil {
		h.tasks = append(h.tasks, t)
	}
	return h != nil
}

// Hold makes t wait for the key k, which is locked.
func (l *Lane) Hold(k Slot, t Task) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds.Add(1)
	if h := l.locked[k]; h != nil {
		h.tasks = append(h.tasks, t)
		return
	}
	h := &lockedKey{slot: k, tasks: []Task{t}}
	l.locked[k] = h
	l.held.Add(1)
	l.turns = append(l.turns, h)
	if l.active < cap(l.patient) {
		l.active++
		go l.run()
	}
}

// Idle reports whether no request is in the lane.
func (l *Lane) Idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.active == 0
}

// Holds returns how often requests came into the lane.
func (l *Lane) Holds() int64 { return l.holds.Load() }

// AwaitIdle waits until no request is in the lane, and reports whether that was so before.
func (l *Lane) AwaitIdle() (was bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was = l.active == 0
	for l.active > 0 {
		l.idle.Wait()
	}
	return was
}

// run sends for the keys in the lane. They take turns, so that a key that is free again
// does not wait for the others.
func (l *Lane) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.turns) > 0 {
		h := l.turns[0]
		l.turns = l.turns[1:]
		l.mu.Unlock()
		l.patient <- struct{}{}
		free := l.turn(h)
		<-l.patient
		l.mu.Lock()
		if !free && len(h.tasks) > 0 {
			l.turns = append(l.turns, h)
			continue
		}
		delete(l.locked, h.slot)
		l.held.Add(-1)
		tasks := h.tasks
		l.mu.Unlock()
		for _, t := range tasks {
			t.Again()
		}
		l.mu.Lock()
	}
	l.active--
	if l.active == 0 {
		l.idle.Broadcast()
	}
}

// turn sends the key's first request that still has a caller, and reports whether the
// row was free.
func (l *Lane) turn(h *lockedKey) (free bool) {
	for {
		l.mu.Lock()
		if len(h.tasks) == 0 {
			l.mu.Unlock()
			return false
		}
		t := h.tasks[0]
		l.mu.Unlock()
		err := ErrGone
		if left := t.Left() - l.margin; left > 0 {
			wait := l.longer(h.wait, left)
			if err = t.Try(wait); err == store.ErrLocked {
				h.wait = wait
				return false
			}
		}
		l.mu.Lock()
		h.tasks[0] = nil
		h.tasks = h.tasks[1:]
		l.mu.Unlock()
		if err != ErrGone {
			return true
		}
	}
}

// longer returns how long the next turn waits after one that found the row locked. The
// server logs each such turn, so there must not be many. The longer a row has been
// locked, the longer its requests may wait for their turn.
func (l *Lane) longer(wait, left time.Duration) time.Duration {
	return max(time.Millisecond, min(max(Patience, 2*wait), l.longest, left))
}
