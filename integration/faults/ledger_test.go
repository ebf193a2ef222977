package faults

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// place is where units count: a row of the limiter.
type place struct{ policy, key string }

// change is what one request did to a place: it added at least least units and at most
// most. Both are n for n units that were acknowledged, and -n for units given back. Without
// an answer the request may have been counted or not: 0 and n, or -n and 0.
type change struct {
	at          place
	when        time.Time // of the answer
	least, most float64
	what        string // the request
	err         error  // its answer
	order       string // the row that the same transaction inserted, if any
}

// String describes a change for the report of a failure.
func (c change) String() string {
	text := fmt.Sprintf("%s %s: %v to %v", c.when.Format("05.000"), c.what, c.least, c.most)
	if c.least == c.most {
		text = fmt.Sprintf("%s %s: %v", c.when.Format("05.000"), c.what, c.least)
	}
	if c.err != nil {
		text += ": " + c.err.Error()
	}
	return text
}

// ledger is what all callers know of what they sent. What a key counts has to be between
// the sums of least and most of its changes.
type ledger struct {
	mu      sync.Mutex
	changes []change
	// What was acknowledged between these moments may be lost: see mayLose.
	lossFrom, lossUntil time.Time
}

func (l *ledger) add(c change) {
	c.when = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = append(l.changes, c)
}

// record records what became of a request for units, which are negative if they were to be
// given back.
func (l *ledger) record(at place, what string, units float64, o outcome, err error) {
	c := change{at: at, what: what, err: err}
	switch o {
	case answered:
		c.least, c.most = units, units
	case lost:
		c.least, c.most = min(0, units), max(0, units)
	}
	l.add(c)
}

// history describes the changes of a place that say how its count can differ from what is
// expected: those without an answer and those that gave units back.
func (l *ledger) history(at place) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, c := range l.changes {
		if c.at == at && (c.err != nil || c.least <= 0 || c.most <= 0) {
			fmt.Fprintf(&b, "\n\t%v", c)
		}
	}
	return b.String()
}

// mayLose says that a fault may lose what was acknowledged between two moments, such as the
// failover to a standby that does not have it yet.
func (l *ledger) mayLose(from, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lossFrom, l.lossUntil = from, until
}

// lossy reports whether what was acknowledged at a moment may be lost.
func (l *ledger) lossy(when time.Time) bool {
	return !l.lossFrom.IsZero() && !when.Before(l.lossFrom) && !when.After(l.lossUntil)
}

// lossySoFar reports whether the fault may have lost anything acknowledged.
func (l *ledger) lossySoFar() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lossFrom.IsZero()
}

// account is the sum of a place's changes.
type account struct {
	acknowledged float64 // added, as far as was acknowledged
	unknown      float64 // may have been added or given back without an answer
	least, most  float64 // what the place may count
	mayLose      float64 // so much of least only if the fault did not lose it
}

// accounts sums up all changes.
func (l *ledger) accounts() map[place]*account {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[place]*account{}
	for _, c := range l.changes {
		a := all[c.at]
		if a == nil {
			a = &account{}
			all[c.at] = a
		}
		if c.least == c.most {
			a.acknowledged += max(0, c.least)
		}
		a.unknown += c.most - c.least
		a.least += c.least
		a.most += c.most
		if l.lossy(c.when) {
			a.mayLose += max(0, c.least)
			a.most -= min(0, c.most) // what was given back may count again
		}
	}
	return all
}

// orders returns the orders whose commit was acknowledged, but for those that may be lost.
func (l *ledger) orders() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.changes {
		if c.order != "" && c.least == c.most && !l.lossy(c.when) {
			ids = append(ids, c.order)
		}
	}
	return ids
}
