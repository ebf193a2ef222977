package janitor

// Removed is what one sweep did, or, from [Janitor.Removed], all sweeps.
type Removed struct {
	// ByTable counts the rows deleted, by the table's name. A table of which
	// none were deleted is absent; the map may be nil.
	ByTable map[string]int64
	// Kept counts the rows that were due and are in use: they are looked at again an
	// hour later at the soonest.
	Kept int64
	// HoldsExpired counts the holds that had expired and were given back. Their
	// rows stay until they need not be remembered any longer.
	ReservationsExpired int64
	// HeldElsewhere is true if another process has the lease: this one swept
	// nothing, or stopped half-way because it had lost the lease.
	HeldElsewhere bool
}

// Total is the number of rows deleted in all tables.
func (r Removed) Total() int64 {
	var n int64
	for _, rows := range r.ByTable {
		n += rows
	}
	return n
}

func (r *Removed) addRows(table string, deleted, kept int64) {
	r.Kept += kept
	if deleted > 0 {
		r.ByTable[table] += deleted
	}
}
