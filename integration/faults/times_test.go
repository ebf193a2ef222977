package faults

import (
	"math"
	"sync"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/duration"
)

// times are the durations of requests, by the time of their end.
type times struct {
	mu  sync.Mutex
	all []took
}

type took struct {
	end time.Time
	d   time.Duration
	ok  bool
}

func (t *times) add(start, end time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, took{end, end.Sub(start), ok})
}

// count returns the number of requests, and of those that failed.
func (t *times) count() (all, failed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.all {
		if !x.ok {
			failed++
		}
	}
	return len(t.all), failed
}

const noAnswer = time.Duration(math.MaxInt64)

// p99 returns the time in which 99 of 100 requests that ended between two moments were
// answered, and their number. An error took forever if errors count.
func (t *times) p99(from, to time.Time, errors bool) (time.Duration, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []time.Duration
	for i := len(t.all) - 1; i >= 0; i-- {
		x := t.all[i]
		if x.end.Before(from.Add(-time.Second)) {
			break // they are in order but for what callers wait for the lock
		}
		if x.end.Before(from) || x.end.After(to) {
			continue
		}
		switch {
		case x.ok:
			all = append(all, x.d)
		case errors:
			all = append(all, noAnswer)
		}
	}
	if len(all) == 0 {
		return noAnswer, 0
	}
	return duration.P99(all), len(all)
}

// A second of the load is normal again if its p99 is at most four times that of the time
// before the fault, or 100 ms. A machine that is busy with other work moves p99 by as much
// from one second to the next; a limiter that has not recovered has errors or waits for
// its Timeout, a second.
const (
	normalBy = 4
	normalAt = 100 * time.Millisecond
	few      = 10 // requests, which say nothing
)

// second is shorter in the short form, which asserts no times.
var second = testworld.Size(200*time.Millisecond, time.Second)

func normal(before time.Duration) time.Duration { return max(normalBy*before, normalAt) }

// awaitNormal waits until p99 is normal in a second after the fault's end, and returns how
// long after it that second began. It gives up after backWithin.
func (s *scene) awaitNormal(began, ended time.Time) (back time.Duration, ok bool) {
	usual, _ := s.times.p99(began.Add(-before), began, true)
	late := usual == noAnswer // other work keeps this machine so busy that requests time out without a fault
	if late {
		usual, _ = s.times.p99(began.Add(-before), began, false)
	}
	const step = 100 * time.Millisecond
	for ; back <= backWithin; back += step {
		from := ended.Add(back)
		<-time.After(time.Until(from.Add(second)))
		if p99, n := s.times.p99(from, from.Add(second), !late); n >= few && p99 <= normal(usual) {
			return back, true
		}
	}
	return back, false
}
