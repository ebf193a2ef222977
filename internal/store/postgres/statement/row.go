package statement

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// fields is one row of any statement. Each has only some of them.
type fields struct {
	policy, key, state, lots                          []byte // valid until the next row is read
	granted, level, current, previous                 float64
	leakedAt, ticket, period, endsAt, newest, freesAt int64
	now, updatedAt, blockedUntil                      int64
	clock                                             *int64 // that the statement was sent with

	reservations, deleted                int64
	reserved, unitsBefore, limit         float64
	burst, capacity, leak                float64
	tick, expiresAt, settledAt, windowOf int64
	changes, freed                       bool

	debt, totalGranted, totalSpent, totalExpired float64
	spent                                        algorithm.Spent
}

// column is one column of a statement, in both forms in which it is read. read reports
// whether the value had the length of its type and was not NULL.
type column struct {
	name  string // of the field, set in a statement
	oid   uint32
	field reflect.Type               // of the generated struct
	read  func(*fields, []byte) bool // from PostgreSQL's binary format
	copy  func(f *fields, field any) // from the generated struct, by a pointer to its field
}

// columns are the columns of all statements by their fields in the generated structs.
// sqlc's text decides their order.
var columns = sync.OnceValue(func() map[string]column {
	return map[string]column{
		"Policy":         textColumn(func(f *fields) *[]byte { return &f.policy }),
		"Key":            textColumn(func(f *fields) *[]byte { return &f.key }),
		"Granted":        floatColumn(func(f *fields) *float64 { return &f.granted }),
		"Level":          floatColumn(func(f *fields) *float64 { return &f.level }),
		"Current":        floatColumn(func(f *fields) *float64 { return &f.current }),
		"Previous":       floatColumn(func(f *fields) *float64 { return &f.previous }),
		"LeakedAtUs":     integerColumn(func(f *fields) *int64 { return &f.leakedAt }),
		"Ticket":         integerColumn(func(f *fields) *int64 { return &f.ticket }),
		"PeriodUs":       integerColumn(func(f *fields) *int64 { return &f.period }),
		"EndsAtUs":       integerColumn(func(f *fields) *int64 { return &f.endsAt }),
		"NewestAtUs":     integerColumn(func(f *fields) *int64 { return &f.newest }),
		"FreesAtUs":      integerColumn(func(f *fields) *int64 { return &f.freesAt }),
		"NowUs":          integerColumn(func(f *fields) *int64 { return &f.now }),
		"UpdatedAtUs":    integerColumn(func(f *fields) *int64 { return &f.updatedAt }),
		"BlockedUntilUs": integerColumn(func(f *fields) *int64 { return &f.blockedUntil }),

		// of a Usage
		"Reservations": integerColumn(func(f *fields) *int64 { return &f.reservations }),
		"Reserved":     floatColumn(func(f *fields) *float64 { return &f.reserved }),

		// of a balance
		"SpentLot":      integerColumn(func(f *fields) *int64 { return &f.spent.Lot }),
		"SpentEndUs":    integerColumn(func(f *fields) *int64 { return &f.spent.Ends }),
		"SpentPriority": integerColumn(func(f *fields) *int64 { return &f.spent.Priority }),

		// of a balance's Usage
		"Debt":         floatColumn(func(f *fields) *float64 { return &f.debt }),
		"TotalGranted": floatColumn(func(f *fields) *float64 { return &f.totalGranted }),
		"TotalSpent":   floatColumn(func(f *fields) *float64 { return &f.totalSpent }),
		"TotalExpired": floatColumn(func(f *fields) *float64 { return &f.totalExpired }),
		"Lots":         textColumn(func(f *fields) *[]byte { return &f.lots }),

		// of a Settle
		"State":       textColumn(func(f *fields) *[]byte { return &f.state }),
		"UnitsBefore": floatColumn(func(f *fields) *float64 { return &f.unitsBefore }),
		"Changes":     booleanColumn(func(f *fields) *bool { return &f.changes }),
		"Freed":       booleanColumn(func(f *fields) *bool { return &f.freed }),
		"LimitUnits":  floatColumn(func(f *fields) *float64 { return &f.limit }),
		"Burst":       floatColumn(func(f *fields) *float64 { return &f.burst }),
		"Capacity":    floatColumn(func(f *fields) *float64 { return &f.capacity }),
		"Leak":        floatColumn(func(f *fields) *float64 { return &f.leak }),
		"TickUs":      integerColumn(func(f *fields) *int64 { return &f.tick }),
		"ExpiresAtUs": integerColumn(func(f *fields) *int64 { return &f.expiresAt }),
		"AtUs":        integerColumn(func(f *fields) *int64 { return &f.settledAt }),
		"WindowUs":    integerColumn(func(f *fields) *int64 { return &f.windowOf }),

		// of a Reset: the number of rows
		"Deleted": integerColumn(func(f *fields) *int64 { return &f.deleted }),
	}
})

func textColumn(to func(*fields) *[]byte) column {
	return column{
		"", pgtype.TextOID, reflect.TypeFor[string](),
		func(f *fields, value []byte) bool {
			*to(f) = append((*to(f))[:0], value...)
			return value != nil
		},
		func(f *fields, field any) { *to(f) = append((*to(f))[:0], *field.(*string)...) },
	}
}

func floatColumn(to func(*fields) *float64) column {
	return fixed(pgtype.Float8OID, 8, to, func(v []byte) float64 { return math.Float64frombits(binary.BigEndian.Uint64(v)) })
}

func integerColumn(to func(*fields) *int64) column {
	return fixed(pgtype.Int8OID, 8, to, func(v []byte) int64 { return int64(binary.BigEndian.Uint64(v)) })
}

func booleanColumn(to func(*fields) *bool) column {
	return fixed(pgtype.BoolOID, 1, to, func(v []byte) bool { return v[0] != 0 })
}

// fixed returns a column whose values have size bytes.
func fixed[T any](oid uint32, size int, to func(*fields) *T, value func([]byte) T) column {
	return column{
		"", oid, reflect.TypeFor[T](),
		func(f *fields, v []byte) bool {
			if len(v) != size {
				return false
			}
			*to(f) = value(v)
			return true
		},
		func(f *fields, field any) { *to(f) = *field.(*T) },
	}
}

// read reads one row.
func (f *fields) read(columns []column, values [][]byte) error {
	if len(values) != len(columns) {
		return fmt.Errorf("a row has %d columns, not %d", len(values), len(columns))
	}
	for i, c := range columns {
		if !c.read(f, values[i]) {
			return fmt.Errorf("column %s of a row is %x, which is no value of type %d", c.name, values[i], c.oid)
		}
	}
	return nil
}

// copy copies one row of sqlc's function, by a pointer to its struct.
func (f *fields) copy(columns []column, row any) {
	v := reflect.ValueOf(row).Elem()
	for i, c := range columns {
		c.copy(f, v.Field(i).Addr().Interface())
	}
}

// views makes the views of several rows in one allocation.
type views struct {
	buckets  []algorithm.Bucket
	windows  []algorithm.Window
	counters []algorithm.Counter
	logs     []algorithm.LogView
	accounts []algorithm.AccountView
}

// together is the largest number of views in one allocation. A denial that is remembered
// keeps them all in memory.
const together = 8

// next returns a new T. left is the number of those still needed, with this one.
func next[T any](made *[]T, left int) *T {
	if len(*made) == 0 {
		*made = make([]T, min(left, together))
	}
	t := &(*made)[0]
	*made = (*made)[1:]
	return t
}

// viewer makes the view of a row. left is as in next.
type viewer func(v *views, left int, f *fields, q *store.Query) algorithm.View

func leakyView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	b := next(&v.buckets, left)
	*b = algorithm.Bucket{Units: f.level, LeakedAt: f.leakedAt}
	return b
}

func bucketView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	b := next(&v.buckets, left)
	*b = algorithm.Bucket{Units: f.level, LeakedAt: f.updatedAt}
	return b
}

func windowView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	w := next(&v.windows, left)
	*w = windowSeen(f.level, f.endsAt, f.updatedAt, f.clock)
	return w
}

// counterView moves the windows on: a denial leaves them as they were.
func counterView(v *views, left int, f *fields, q *store.Query) algorithm.View {
	c := next(&v.counters, left)
	*c = algorithm.Counter{Current: f.current, Previous: f.previous, Period: f.period, EndsAt: f.endsAt}
	c.Advance(&q.Rules, f.updatedAt, f.updatedAt)
	return c
}

func logView(v *views, left int, f *fields, _ *store.Query) algorithm.View {
	l := next(&v.logs, left)
	*l = algorithm.LogView{Units: f.level, Newest: f.newest, Frees: f.freesAt}
	return l
}

// windowSeen returns the window of a row as a statement's clock saw it: a row may keep the
// count of a window that is over. If now is nil, the clock is not known; it was at most
// updatedAt.
func windowSeen(count float64, endsAt, updatedAt int64, now *int64) algorithm.Window {
	if now != nil {
		updatedAt = *now
	}
	if updatedAt >= endsAt {
		count = 0
	}
	return algorithm.Window{Count: count, EndsAt: endsAt}
}

// outcome returns the outcome of a row after units were taken or given back. granted is
// negative if the key was blocked.
func (f *fields) outcome(view algorithm.View) store.Outcome {
	return store.Outcome{
		Decided: true, Granted: max(0, f.granted), Blocked: f.granted < 0,
		Now: f.updatedAt, UpdatedAt: f.updatedAt, BlockedUntil: f.blockedUntil, Ticket: f.ticket, View: view,
	}
}

// continued returns the outcome of a row that was only read, moved on to the moment of the
// query. A log is read at that moment: it has a view and no state.
func (f *fields) continued(q *store.Query, s algorithm.State) store.Outcome {
	o := store.Outcome{Decided: true, Now: f.now, UpdatedAt: max(f.now, f.updatedAt), BlockedUntil: f.blockedUntil}
	if s == nil {
		o.View = algorithm.LogView{Units: f.level, Newest: f.newest, Frees: f.freesAt}
	} else {
		o.View = s.Seen(&q.Rules, o.Now, o.UpdatedAt, q.Room, q.Rest(0))
	}
	return o
}

// The states of a row that was only read.

func leakyState(f *fields) algorithm.State {
	return &algorithm.Bucket{Units: f.level, LeakedAt: f.leakedAt}
}

func bucketState(f *fields) algorithm.State {
	return &algorithm.Bucket{Units: f.level, LeakedAt: f.updatedAt}
}

func windowState(f *fields) algorithm.State {
	return &algorithm.Window{Count: f.level, EndsAt: f.endsAt}
}

func counterState(f *fields) algorithm.State {
	return &algorithm.Counter{Current: f.current, Previous: f.previous, Period: f.period, EndsAt: f.endsAt}
}

func logState(*fields) algorithm.State { return nil }

// ended returns the row of a Settle of the reservation id.
func (f *fields) ended(id store.ReservationID) store.Ended {
	r := algorithm.Rules{Burst: f.burst, Capacity: f.capacity, Leak: f.leak, Tick: f.tick, Period: f.period}
	var now algorithm.State
	switch id.Algorithm.Family() {
	case algorithm.Windows:
		now = &algorithm.Window{Count: f.level, EndsAt: f.settledAt}
	case algorithm.Counters:
		now = &algorithm.Counter{Current: f.level, Previous: f.previous, EndsAt: f.settledAt, Period: f.windowOf}
	case algorithm.Logs:
		f.newest = f.settledAt
	case algorithm.Balances:
		now = accountState(f)
	default:
		now = &algorithm.Bucket{Units: f.level, LeakedAt: f.settledAt}
	}
	return store.Ended{
		Reservation: store.Reservation{
			ReservationID: id, Rules: r, Limit: f.limit, State: store.State(f.state),
			Reserved: f.reserved, Units: f.unitsBefore, ExpiresAt: f.expiresAt,
		},
		Now: f.now, Changed: f.changes, Freed: f.freed,
		Outcome: f.continued(&store.Query{Rules: r}, now),
	}
}
