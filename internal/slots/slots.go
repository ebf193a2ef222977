// Package slots keeps the slots in a queue of requests that were cancelled after others had
// queued behind them. The others sleep until their own slots, so the gap cannot close. A
// later request can use it.
package slots

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Longest bounds how far in the future a slot may end: a century.
const Longest = 100 * 365 * 24 * time.Hour

// touching is the largest gap between two slots that follow one another: the time of a
// request and its delay are rounded to microseconds.
const touching = 2 * time.Microsecond

// sweepEvery is the least time between two searches for slots that have passed.
const sweepEvery = time.Second

// Slots keeps abandoned slots by queue. It is safe for concurrent use. Create it with New.
type Slots[K comparable] struct {
	most int
	base time.Time

	mu     sync.Mutex
	queues map[K][]span // in the order of their begins
	n      int          // spans in all queues
	swept  time.Duration
}

// span is an unused part of a queue's time, measured from Slots.base.
type span struct{ from, to time.Duration }

// Slot is the begin of a slot, and the time until the next one may begin.
type Slot struct {
	From  time.Time
	Width time.Duration
}

// IsZero reports whether t is no slot.
func (t Slot) IsZero() bool { return t.Width <= 0 }

// New returns Slots with room for most slots.
func New[K comparable](most int) *Slots[K] {
	return &Slots[K]{most: most, base: time.Now(), queues: map[K][]span{}}
}

// Put keeps an unused slot until it has passed. It drops the slot if there
// are too many, and a zero one.
func (t *Slots[K]) Put(queue K, slot Slot) {
	s := span{from: slot.From.Sub(t.base)}
	if s.to = s.from + slot.Width; slot.IsZero() || slot.Width > Longest || s.from > 2*Longest {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.base)
	if s.to <= now || !t.fits(now) {
		return
	}
	t.set(queue, insert(t.queues[queue], s))
}

// insert adds a span behind those that do not begin later.
func insert(spans []span, s span) []span {
	i, _ := slices.BinarySearchFunc(spans, s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return slices.Insert(spans, i, s)
}

// Take returns the earliest slot of that width which lies ahead and begins until by. It
// may be a part of an unused slot, or several that follow one another. No part is
// returned twice.
func (t *Slots[K]) Take(queue K, width time.Duration, by time.Time) (Slot, bool) {
	if width <= 0 {
		return Slot{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, last := time.Since(t.base), by.Sub(t.base)
	spans := ahead(t.queues[queue], now)
	t.set(queue, spans)
	for first := 0; first < len(spans); {
		from, to, next := max(spans[first].from, now), spans[first].to, first+1
		if from > last {
			break
		}
		for to-from < width && next < len(spans) && spans[next].from <= to+touching {
			to = max(to, spans[next].to)
			next++
		}
		if to-from < width { // the spans from first to next are too short together
			first = next
			continue
		}
		spans = slices.Delete(spans, first, next)
		if from+width < to {
			spans = insert(spans, span{from + width, to})
		}
		t.set(queue, spans)
		return Slot{From: t.base.Add(from), Width: width}, true
	}
	return Slot{}, false
}

// Drop forgets the slots of a queue.
func (t *Slots[K]) Drop(queue K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(queue, nil)
}

// Has reports whether a queue has abandoned slots, which may have passed.
func (t *Slots[K]) Has(queue K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queues[queue]) > 0
}

// Len returns the number of slots kept, including some that have passed.
func (t *Slots[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// set sets the spans of a queue.
func (t *Slots[K]) set(queue K, spans []span) {
	t.n += len(spans) - len(t.queues[queue])
	if len(spans) == 0 {
		delete(t.queues, queue)
	} else {
		t.queues[queue] = spans
	}
}

// fits reports whether one more slot can be kept. To make it fit, it drops slots that have
// passed.
func (t *Slots[K]) fits(now time.Duration) bool {
	if t.n < t.most {
		return true
	}
	if now-t.swept < sweepEvery {
		return false
	}
	t.swept = now
	for queue, spans := range t.queues {
		t.set(queue, ahead(spans, now))
	}
	return t.n < t.most
}

// ahead returns the spans that have not passed.
func ahead(spans []span, now time.Duration) []span {
	return slices.DeleteFunc(spans, func(s span) bool { return s.to <= now })
}
