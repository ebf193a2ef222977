// Package places keeps the places in a queue of requests that were cancelled after others had
// queued behind them. The others sleep until their own places, so the gap cannot close. A
// later request can use it.
package places

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Longest bounds how far in the future a place may end: a century.
const Longest = 100 * 365 * 24 * time.Hour

// touching is the largest gap between two places that follow one another: the time of a
// request and its delay are rounded to microseconds.
const touching = 2 * time.Microsecond

// sweepEvery is the least time between two searches for places that have passed.
const sweepEvery = time.Second

// Places keeps abandoned places by queue. It is safe for concurrent use. Create it with New.
type Places[K comparable] struct {
	most int
	base time.Time

	mu     sync.Mutex
	queues map[K][]span // in the order of their begins
	n      int          // spans in all queues
	swept  time.Duration
}

// span is an unused part of a queue's time, measured from Places.base.
type span struct{ from, to time.Duration }

// Place is the begin of a place, and the time until the next one may begin.
type Place struct {
	From  time.Time
	Width time.Duration
}

// IsZero reports whether t is no place.
func (t Place) IsZero() bool { return t.Width <= 0 }

// New returns Places with room for most places.
func New[K comparable](most int) *Places[K] {
	return &Places[K]{most: most, base: time.Now(), queues: map[K][]span{}}
}

// Put keeps an unused place until it has passed. It drops the place if there
// are too many, and a zero one.
func (t *Places[K]) Put(queue K, place Place) {
	s := span{from: place.From.Sub(t.base)}
	if s.to = s.from + place.Width; place.IsZero() || place.Width > Longest || s.from > 2*Longest {
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

// Take returns the earliest place of that width which lies ahead and begins until by. It
// may be a part of an unused place, or several that follow one another. No part is
// returned twice.
func (t *Places[K]) Take(queue K, width time.Duration, by time.Time) (Place, bool) {
	if width <= 0 {
		return Place{}, false
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
		return Place{From: t.base.Add(from), Width: width}, true
	}
	return Place{}, false
}

// Drop forgets the places of a queue.
func (t *Places[K]) Drop(queue K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(queue, nil)
}

// Has reports whether a queue has abandoned places, which may have passed.
func (t *Places[K]) Has(queue K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queues[queue]) > 0
}

// Len returns the number of places kept, including some that have passed.
func (t *Places[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// set sets the spans of a queue.
func (t *Places[K]) set(queue K, spans []span) {
	t.n += len(spans) - len(t.queues[queue])
	if len(spans) == 0 {
		delete(t.queues, queue)
	} else {
		t.queues[queue] = spans
	}
}

// fits reports whether one more place can be kept. To make it fit, it drops places that have
// passed.
func (t *Places[K]) fits(now time.Duration) bool {
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
