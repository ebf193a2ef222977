package algorithm

import (
	"math"
	"slices"
)

// Attempts is the name of the algorithm of attempts. It meters no units and shares no state
// with the others, so it is not in [Names].
const Attempts Name = "attempts"

// AttemptRules are a policy's numbers for attempts. Times are microseconds.
type AttemptRules struct {
	Limit    int64   // failures from which on each makes a wait
	AtOnce   int64   // attempts that may be under way at once
	Quiet    int64   // the time after the last wait or failure that forgets the count
	BlockFor int64   // the first wait
	Growth   float64 // of each further wait
	BlockMax int64   // the longest wait
}

// maxGrowths is the number of times that a wait grows.
const maxGrowths = 1000

// Wait returns the wait after the last of a number of failures. pglimit_attempt_counts computes the
// same bits.
func (r *AttemptRules) Wait(failures int64) int64 {
	if failures < r.Limit {
		return 0
	}
	wait, most := float64(r.BlockFor), float64(r.BlockMax)
	for range min(failures-r.Limit, maxGrowths) {
		if wait >= most || r.Growth == 1 {
			break
		}
		wait = float64(wait * r.Growth)
	}
	return int64(math.RoundToEven(min(wait, most)))
}

// Tries is one row of attempts: of a source that has succeeded before, or of all others.
// Times are microseconds.
type Tries struct {
	Failures     int64 // that count until ForgetAt
	WaitsUntil   int64
	ForgetAt     int64
	KnownUntil   int64 // of a source that has succeeded
	BlockedUntil int64 // by Block, of the row of all others
	UpdatedAt    int64 // the clock that never moves back

	// The tickets under way, by their ends: the texts of their IDs, and their sources. An
	// outcome may have only the ends.
	IDs, Sources []string
	Ends         []int64
}

// Count returns the failures that count at time at, if no ticket has expired by then.
func (t *Tries) Count(at int64) int64 {
	if at < t.ForgetAt {
		return t.Failures
	}
	return 0
}

// Waits returns the end of the wait or block at time at, and whether there is one.
func (t *Tries) Waits(at int64) (until int64, waits bool) {
	until = max(t.WaitsUntil, t.BlockedUntil)
	return until, until > at
}

// Expired returns the number of tickets that have expired at time at.
func (t *Tries) Expired(at int64) int {
	n, found := slices.BinarySearch(t.Ends, at)
	for found && n < len(t.Ends) && t.Ends[n] == at {
		n++
	}
	return n
}

// Fold counts the tickets that have expired at time at as failures, the last of them at its
// end. The count before them is forgotten if the quiet time had passed before the first ended.
func (t *Tries) Fold(r *AttemptRules, at int64) {
	k := t.Expired(at)
	if k == 0 {
		return
	}
	first, last := t.Ends[0], t.Ends[k-1]
	t.fail(r, t.Count(first)+int64(k), last)
	if t.Ends = t.Ends[k:]; len(t.IDs) > 0 {
		t.IDs, t.Sources = t.IDs[k:], t.Sources[k:]
	}
}

// fail sets the count of failures, of which the last was at time at.
func (t *Tries) fail(r *AttemptRules, failures, at int64) {
	t.Failures = failures
	t.WaitsUntil = max(t.WaitsUntil, at+r.Wait(failures))
	t.ForgetAt = t.WaitsUntil + r.Quiet
}

// Begin adds a ticket, if it may be under way beside the others. blocked is the end of the
// key's block.
func (t *Tries) Begin(r *AttemptRules, at, blocked int64, id, source string, end int64) bool {
	t.Fold(r, at)
	if t.UpdatedAt = at; blocked > at || t.WaitsUntil > at || int64(len(t.IDs)) >= r.AtOnce {
		return false
	}
	i := t.Expired(end) // behind those that end at the same time
	t.IDs, t.Sources, t.Ends = slices.Insert(t.IDs, i, id), slices.Insert(t.Sources, i, source), slices.Insert(t.Ends, i, end)
	return true
}

// End takes out a ticket that is under way at time at, and returns its source.
func (t *Tries) End(r *AttemptRules, at int64, id string) (source string, found bool) {
	i := slices.Index(t.IDs, id)
	if i < t.Expired(at) { // or there is none
		return "", false
	}
	source = t.Sources[i]
	t.IDs, t.Sources, t.Ends = slices.Delete(t.IDs, i, i+1), slices.Delete(t.Sources, i, i+1), slices.Delete(t.Ends, i, i+1)
	t.Fold(r, at)
	t.UpdatedAt = at
	return source, true
}

// Fail counts a failure at time at. Expired tickets were folded.
func (t *Tries) Fail(r *AttemptRules, at int64) { t.fail(r, t.Count(at)+1, at) }

// Succeed clears the count and the wait.
func (t *Tries) Succeed() { t.Failures, t.WaitsUntil, t.ForgetAt = 0, 0, 0 }

// Unblock lifts the wait and the block. The failures still count.
func (t *Tries) Unblock(r *AttemptRules, at int64) {
	t.Fold(r, at)
	t.WaitsUntil, t.BlockedUntil = 0, 0
}

// Clone returns a copy.
func (t *Tries) Clone() *Tries {
	c := *t
	c.IDs, c.Sources, c.Ends = slices.Clone(t.IDs), slices.Clone(t.Sources), slices.Clone(t.Ends)
	return &c
}

// FreeAt returns the first moment, not before at, at which another attempt may begin if
// nothing else happens.
func (t *Tries) FreeAt(r *AttemptRules, at int64) int64 {
	for t = t.Clone(); ; {
		t.Fold(r, at)
		switch until, waits := t.Waits(at); {
		case waits:
			at = until
		case int64(len(t.Ends)) >= r.AtOnce:
			at = t.Ends[0]
		default:
			return at
		}
	}
}

// EmptyAt returns the first moment from which the row decides as a missing one, if nothing
// else happens. The memory of a source may last longer.
func (t *Tries) EmptyAt(r *AttemptRules) int64 {
	t = t.Clone()
	t.Fold(r, Never)
	until, _ := t.Waits(0)
	if t.Failures > 0 {
		until = max(until, t.ForgetAt)
	}
	return until
}
