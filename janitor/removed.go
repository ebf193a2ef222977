package janitor

// Removed is the result of one sweep or, from [Janitor.Removed], of all sweeps.
type Removed struct {
	// ByTable is the number of rows deleted from each table, by the table's name.
	// Tables without deleted rows are absent; the map may be nil.
	ByTable map[string]int64
	// Kept is the number of due rows that are in use. They are due again after an
	// hour at the earliest.
	Kept int64
	// ReservationsExpired is the number of expired reservations whose units were
	// returned. Their rows are deleted when their retention is over.
	ReservationsExpired int64
	// HeldElsewhere reports whether another process has the lease. Then this sweep
	// did nothing, or lost the lease and stopped early.
	HeldElsewhere bool
}

// Total returns the number of rows deleted from all tables.
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
