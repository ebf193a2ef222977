package algorithm

import "slices"

// Concurrency is the name of the algorithm of slots. As [Attempts] it meters no units that pass,
// so it is not in [Names].
const Concurrency Name = "concurrency"

// All returns the names of all algorithms, with those that meter no units last.
func All() []Name { return append(Names[:len(Names):len(Names)], Attempts, Concurrency, Balance) }

// AllTables is [Tables] with the algorithms that meter no units.
func AllTables() []Name {
	return append(Tables[:len(Tables):len(Tables)], Balance, Attempts, Concurrency)
}

// Slots is the row of a key of slots. Times are microseconds.
type Slots struct {
	IDs          []string // in the order of their ends
	Costs, Ends  []int64
	Fence        int64 // of the last slot; it only grows
	BlockedUntil int64
	UpdatedAt    int64 // the clock that never moves back
	Period       int64 // the policy's, as of the last Acquire
}

// Held returns the units that are held.
func (s *Slots) Held() (units int64) {
	for _, c := range s.Costs {
		units += c
	}
	return units
}

// End takes out the slots that have ended at time at.
func (s *Slots) End(at int64) {
	n := s.place(at)
	s.IDs, s.Costs, s.Ends = slices.Delete(s.IDs, 0, n), slices.Delete(s.Costs, 0, n), slices.Delete(s.Ends, 0, n)
}

// place returns the number of slots that end at or before time at.
func (s *Slots) place(at int64) int {
	n, _ := slices.BinarySearch(s.Ends, at+1)
	return n
}

// Acquire adds a slot that ends at end, if the key is not blocked and limit is not exceeded.
func (s *Slots) Acquire(at, limit, cost int64, id string, end int64) bool {
	s.End(at)
	if s.UpdatedAt = at; s.BlockedUntil > at || s.Held()+cost > limit {
		return false
	}
	s.Fence = max(s.Fence+1, at)
	s.insert(id, cost, end)
	return true
}

func (s *Slots) insert(id string, cost, end int64) {
	i := s.place(end)
	s.IDs, s.Costs, s.Ends = slices.Insert(s.IDs, i, id), slices.Insert(s.Costs, i, cost), slices.Insert(s.Ends, i, end)
}

// Renew moves the end of a slot to end, or leaves it if that is earlier. It returns the new end,
// and false if the slot has ended at time at.
func (s *Slots) Renew(at int64, id string, end int64) (int64, bool) {
	cost, old, found := s.take(at, id)
	if found {
		end = max(old, end)
		s.insert(id, cost, end)
	}
	return end, found
}

// Release takes a slot out. It returns false if that has ended at time at.
func (s *Slots) Release(at int64, id string) bool {
	_, _, found := s.take(at, id)
	return found
}

// take takes out a slot that has not ended at time at, and with it those that have.
func (s *Slots) take(at int64, id string) (cost, end int64, found bool) {
	i := slices.Index(s.IDs, id)
	if i < s.place(at) { // or there is none
		return 0, 0, false
	}
	cost, end = s.Costs[i], s.Ends[i]
	s.IDs, s.Costs, s.Ends = slices.Delete(s.IDs, i, i+1), slices.Delete(s.Costs, i, i+1), slices.Delete(s.Ends, i, i+1)
	s.End(at)
	s.UpdatedAt = at
	return cost, end, true
}

// FreeAt returns the first end after which the cost fits, if no slot is renewed or released: 0
// if it fits now. Ended slots were taken out, and the cost is at most the limit.
func (s *Slots) FreeAt(limit, cost int64) int64 {
	over := s.Held() + cost - limit
	for i := range s.Ends {
		if over <= 0 {
			break
		}
		if over -= s.Costs[i]; over <= 0 {
			return s.Ends[i]
		}
	}
	return 0
}

// LastEnd returns the end of the last slot, 0 without any.
func (s *Slots) LastEnd() int64 {
	if n := len(s.Ends); n > 0 {
		return s.Ends[n-1]
	}
	return 0
}

// EmptyAt returns the first moment from which the row decides as a missing one. Until then it
// keeps the last fence: later the clock is above it.
func (s *Slots) EmptyAt() int64 { return max(s.LastEnd(), s.BlockedUntil, s.UpdatedAt, s.Fence+1) }
