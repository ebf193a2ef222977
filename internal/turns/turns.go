// Package turns keeps the turns of requests that left a queue although others had queued
// behind them. Those others sleep until turns that they know, so the gap cannot close. A
// later request can use it instead.
package turns

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Longest bounds how far in the future a turn may end: a century.
const Longest = 100 * 365 * 24 * time.Hour

// touching is the largest gap between two turns that follow one another: the time of a
// request and its delay are rounded to microseconds.
const touching = 2 * time.Microsecond

// sweepEvery is the least time between two searches for turns that have passed.
const sweepEvery = time.Second

// Turns keeps abandoned turns by queue. It is safe for concurrent use. Create it with New.
type Turns[K comparable] struct {
	most int
	base time.Time

	mu     sync.Mutex
	queues map[K][]span // in the order of their begins
	n      int          // spans in all queues
	swept  time.Duration
}

// span is a part of a queue's time that nobody uses, measured from Turns.base.
type span struct{ from, to time.Duration }

// Turn is the begin of a turn, and the time until the next one may begin.
type Turn struct {
	From  time.Time
	Width time.Duration
}

// IsZero reports whether t is no turn.
func (t Turn) IsZero() bool { return t.Width <= 0 }

// New returns Turns that keeps at most that many turns.
func New[K comparable](most int) *Turns[K] {
	return &Turns[K]{most: most, base: time.Now(), queues: map[K][]span{}}
}

// Give keeps a turn that nobody will use, until it has passed. It drops the turn if there
// are too many, and a zero one.
func (t *Turns[K]) Give(queue K, turn Turn) {
	s := span{from: turn.From.Sub(t.base)}
	if s.to = s.from + turn.Width; turn.IsZero() || turn.Width > Longest || s.from > 2*Longest {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Since(t.base)
	if s.to <= now || !t.room(now) {
		return
	}
	t.put(queue, insert(t.queues[queue], s))
}

// insert adds a span behind those that do not begin later.
func insert(spans []span, s span) []span {
	i, _ := slices.BinarySearchFunc(spans, s, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return slices.Insert(spans, i, s)
}

// Take returns the earliest turn of that width which lies ahead and begins until by. It
// may be a part of an abandoned turn, or several that follow one another. No part is
// returned twice.
func (t *Turns[K]) Take(queue K, width time.Duration, by time.Time) (Turn, bool) {
	if width <= 0 {
		return Turn{}, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, last := time.Since(t.base), by.Sub(t.base)
	spans := ahead(t.queues[queue], now)
	t.put(queue, spans)
	for first := 0; first < len(spans); {
		from, to, next := max(spans[first].from, now), spans[first].to, first+1
		if from > last {
			break
		}
		for to-from < width && next < len(spans) && spans[next].from <= to+touching {
			to = max(to, spans[next].to)
			next++
		}
		if to-from < width { // neither is there room between first and next
			first = next
			continue
		}
		spans = slices.Delete(spans, first, next)
		if from+width < to {
			spans = insert(spans, span{from + width, to})
		}
		t.put(queue, spans)
		return Turn{From: t.base.Add(from), Width: width}, true
	}
	return Turn{}, false
}

// Drop forgets the turns of a queue.
func (t *Turns[K]) Drop(queue K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(queue, nil)
}

// Has reports whether a queue has abandoned turns, which may have passed.
func (t *Turns[K]) Has(queue K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queues[queue]) > 0
}

// Len returns the number of turns kept, including some that have passed.
func (t *Turns[K]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// put sets the spans of a queue.
func (t *Turns[K]) put(queue K, spans []span) {
	t.n += len(spans) - len(t.queues[queue])
	if len(spans) == 0 {
		delete(t.queues, queue)
	} else {
		t.queues[queue] = spans
	}
}

// room reports whether one more turn can be kept. To make room it drops turns that have
// passed.
func (t *Turns[K]) room(now time.Duration) bool {
	if t.n < t.most {
		return true
	}
	if now-t.swept < sweepEvery {
		return false
	}
	t.swept = now
	for queue, spans := range t.queues {
		t.put(queue, ahead(spans, now))
	}
	return t.n < t.most
}

// ahead returns the spans that have not passed.
func ahead(spans []span, now time.Duration) []span {
	return slices.DeleteFunc(spans, func(s span) bool { return s.to <= now })
}
