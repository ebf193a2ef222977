package contest

import "sync"

// ledger has the reservations of one key, in units. A client learns of each change only
// after the database made it, or never. So the ledger has bounds for what the database
// counts.
type ledger struct {
	mu sync.Mutex
	// kept is the least that is admitted now: open reservations, and settled ones up to
	// what was reserved. most is the largest kept so far.
	kept, most int64
	// low and high bound what is counted now.
	low, high int64

	made, settled, cancelled, leftOpen, late int64
}

func (l *ledger) change(how func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how()
	l.most = max(l.most, l.kept)
}

// reserved records a reservation of n units.
func (l *ledger) reserved(n int64) {
	l.change(func() { l.made++; l.kept += n; l.low += n; l.high += n })
}

// maybeReserved records a Reserve without an answer.
func (l *ledger) maybeReserved(n int64) { l.change(func() { l.high += n }) }

// ending records that a reservation of n units is about to be settled with a; 0 is also
// for Cancel. What it gives back may be admitted to others before the answer.
func (l *ledger) ending(n, a int64) {
	back := max(0, n-a)
	l.change(func() { l.kept -= back; l.low -= back })
}

// ended records the answer after ending.
func (l *ledger) ended(n, a int64) {
	l.change(func() { l.high += a - n; l.low += max(0, a-n) })
}

// maybeEnded records that there was no answer after ending.
func (l *ledger) maybeEnded(n, a int64) { l.change(func() { l.high += max(0, a-n) }) }

// expiring records that a reservation is left open: it counts for a while.
func (l *ledger) expiring(n int64) {
	l.change(func() { l.leftOpen++; l.kept -= n; l.low -= n })
}

// lateEnded records that a reservation was settled after expiring. That counts its units
// even if others have been admitted meanwhile.
func (l *ledger) lateEnded(n, a int64) {
	l.change(func() { l.late++; l.low += a; l.high += a - n })
}
