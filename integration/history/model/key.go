package model

import "slices"

// Entry is the units of a log that were counted at one time.
type Entry struct {
	At    int64
	Units float64
}

// Key is the state of one key under one policy.
type Key struct {
	Known   bool  // it was used since the last Reset
	Counted bool  // by more than a block
	Clock   int64 // of the last decision
	Blocked int64 // until then
	Begun   begun // the block that an attempt of an operation has started

	Last Rules // of the last decision

	Level float64 // a bucket's, as of Since; a window's count
	Since int64   // when the current tick began
	Ends  int64   // of the window

	Before float64 // a counter's previous window
	Span   int64   // the length of a counter's windows

	Entries []Entry // of a log, one for each time
	Keep    int64   // the longest period that a log was asked for
}

// begun is a block that an operation lifts if it is tried once more.
type begun struct {
	Op    int
	Until int64
}

// lift lifts the block of an operation's first attempt.
func (k *Key) lift(op int) {
	if op != 0 && k.Begun.Op == op {
		if k.Blocked == k.Begun.Until {
			k.Blocked = 0
		}
		k.Begun = begun{}
	}
}

func (k *Key) equal(o *Key) bool {
	return k.Known == o.Known && k.Counted == o.Counted && k.Clock == o.Clock && k.Blocked == o.Blocked && k.Begun == o.Begun && k.Last == o.Last &&
		k.Level == o.Level && k.Since == o.Since && k.Ends == o.Ends && k.Before == o.Before && k.Span == o.Span &&
		k.Keep == o.Keep && slices.Equal(k.Entries, o.Entries)
}

// clone returns a copy that shares nothing.
func (k *Key) clone() Key {
	c := *k
	c.Entries = slices.Clone(k.Entries)
	return c
}

// at returns the time of a decision whose reading of the clock is now: the clock of a key
// never moves back.
func (k *Key) at(now int64) int64 {
	if k.Known {
		return max(k.Clock, now)
	}
	return now
}

func (k *Key) blocked(now int64) bool { return k.Known && k.Blocked > k.at(now) }

// begin makes a key that was not known.
func (k *Key) begin(now int64) {
	if !k.Known {
		*k = Key{Known: true, Clock: now, Since: now, Span: 1, Keep: 1}
	}
}

// decided notes a decision by rules.
func (k *Key) decided(r *Rules, now int64) { k.Counted, k.Clock, k.Last = true, k.at(now), *r }

// pass lets time pass until now, before units are added by rules r.
func (k *Key) pass(r *Rules, now int64) {
	e := k.at(now)
	switch r.Kind {
	case Bucket, Queue:
		k.drain(r, e)
	case Window:
		if now >= k.Ends {
			k.Level, k.Ends = 0, r.windowEnd(now)
		}
	case Counter:
		k.turn(r.Period, e)
	case Log:
		k.Keep = max(k.Keep, r.Period)
		k.forget(e - r.Period)
	}
}

// drain leaks whole ticks. An empty bucket begins its tick anew.
func (k *Key) drain(r *Rules, e int64) {
	if left := k.Level - r.leak(e-k.Since); left > 0 {
		k.Level, k.Since = left, e-(e-k.Since)%r.Tick
	} else {
		k.Level, k.Since = 0, e
	}
}

// turn moves a counter to the window that e is in, the next ones of that length.
func (k *Key) turn(length, e int64) {
	if e < k.Ends {
		return
	}
	last, ended, span := k.Level, k.Ends, k.Span
	k.Level, k.Before, k.Span = 0, 0, length
	k.Ends = e - e%length + length
	if gone := e - ended; gone < span {
		if length == span {
			k.Before = last
		} else { // the new windows begin with what still weighs of the last one
			k.Level = last * float64(span-gone) / float64(span)
		}
	}
}

// forget drops the log's entries up to a time.
func (k *Key) forget(until int64) {
	k.Entries = slices.DeleteFunc(k.Entries, func(x Entry) bool { return x.At <= until })
}

// used returns the units in use for a request by r.
func (k *Key) used(r *Rules, now int64) float64 {
	c := k.clone()
	c.begin(now)
	e := c.at(now)
	switch r.Kind {
	case Window:
		if now >= c.Ends {
			return 0
		}
		return c.Level
	case Log:
		return c.since(e - r.Period)
	case Counter:
		c.turn(r.Period, e)
		return c.Level + c.Before*float64(min(c.Span, c.Ends-e))/float64(c.Span)
	}
	c.drain(r, e)
	return c.Level
}

// since returns the units of a log after a time.
func (k *Key) since(from int64) (sum float64) {
	for _, x := range k.Entries {
		if x.At > from {
			sum += x.Units
		}
	}
	return sum
}

// add counts units, after pass.
func (k *Key) add(r *Rules, e int64, units float64) {
	if r.Kind != Log {
		k.Level += units
		return
	}
	if n := len(k.Entries); n > 0 && k.Entries[n-1].At == e {
		k.Entries[n-1].Units += units
		return
	}
	k.Entries = append(k.Entries, Entry{e, units})
}

// deny notes a denial by r, which changes only what time has changed. A window that is over
// keeps its count until another begins, for requests with an older reading of the clock. A
// counter's first window begins with its row.
func (k *Key) deny(r *Rules, now int64) {
	fresh := !k.Known
	k.begin(now)
	switch e := k.at(now); r.Kind {
	case Bucket, Queue:
		k.drain(r, e)
	case Counter:
		if fresh {
			k.turn(r.Period, e)
		}
	case Log:
		k.Keep = max(k.Keep, r.Period)
	}
	k.decided(r, now)
}

// fits returns the first time from now on at which need units fit for r if nothing else
// happens.
func (k *Key) fits(r *Rules, now int64, need float64) int64 {
	c := k.clone()
	c.begin(now)
	e, free := c.at(now), r.capacity()-need
	if free < 0 {
		return Never
	}
	if c.used(r, now) <= free {
		return e
	}
	switch r.Kind {
	case Window:
		return max(e, c.Ends)
	case Log:
		left := c.since(e - r.Period)
		for _, x := range c.Entries {
			if x.At <= e-r.Period {
				continue
			}
			if left -= x.Units; left <= free {
				return x.At + r.Period
			}
		}
	case Counter:
		c.turn(r.Period, e)
		if c.Level <= free { // the previous window gets light enough within the current one
			if us := c.Ends - int64((free-c.Level)*float64(c.Span)/c.Before); us < c.Ends {
				return us
			}
			return c.Ends
		}
		return c.Ends + c.Span - int64(free*float64(c.Span)/c.Level)
	}
	c.drain(r, e)
	return c.Since + r.leaked(c.Level-free)
}

// empty returns the first time from now on at which nothing is in use.
func (k *Key) empty(r *Rules, now int64) int64 {
	c := k.clone()
	c.begin(now)
	e := c.at(now)
	switch r.Kind {
	case Window:
		if c.used(r, now) > 0 {
			return max(e, c.Ends)
		}
	case Log:
		if c.used(r, now) > 0 {
			return max(e, c.Entries[len(c.Entries)-1].At+r.Period)
		}
	case Counter:
		c.turn(r.Period, e)
		if c.Level > 0 {
			return c.Ends + c.Span
		} else if c.Before > 0 {
			return max(e, c.Ends)
		}
	default:
		c.drain(r, e)
		if c.Level > 0 {
			return c.Since + r.leaked(c.Level)
		}
	}
	return e
}
