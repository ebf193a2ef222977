package statement

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// fields is one row of any algorithm's Take or TakeMany. Each has only some of them.
type fields struct {
	policy, key                                       []byte // valid until the next row is read
	granted, level, current, previous                 float64
	leakedAt, ticket, period, endsAt, newest, freesAt int64
	updatedAt, blockedUntil                           int64
	now                                               *int64 // that the statement was sent with
}

// column reads one column in PostgreSQL's binary format. It reports whether the value had
// the length of its type and was not NULL.
type column struct {
	name  string // of the field, set in a plan
	oid   uint32
	field reflect.Type // of the generated struct
	read  func(*fields, []byte) bool
}

// columns has the columns by their fields in the generated structs. sqlc's text decides
// their order.
var columns = map[string]column{
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
	"UpdatedAtUs":    integerColumn(func(f *fields) *int64 { return &f.updatedAt }),
	"BlockedUntilUs": integerColumn(func(f *fields) *int64 { return &f.blockedUntil }),
}

func textColumn(to func(*fields) *[]byte) column {
	return column{"", pgtype.TextOID, reflect.TypeFor[string](), func(f *fields, value []byte) bool {
		*to(f) = value
		return value != nil
	}}
}

func floatColumn(to func(*fields) *float64) column {
	return column{"", pgtype.Float8OID, reflect.TypeFor[float64](), func(f *fields, value []byte) bool {
		if len(value) != 8 {
			return false
		}
		*to(f) = math.Float64frombits(binary.BigEndian.Uint64(value))
		return true
	}}
}

func integerColumn(to func(*fields) *int64) column {
	return column{"", pgtype.Int8OID, reflect.TypeFor[int64](), func(f *fields, value []byte) bool {
		if len(value) != 8 {
			return false
		}
		*to(f) = int64(binary.BigEndian.Uint64(value))
		return true
	}}
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

// views makes the views of several rows in one allocation.
type views struct {
	buckets  []algorithm.Bucket
	windows  []algorithm.Window
	counters []algorithm.Counter
	logs     []algorithm.LogView
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
	*w = windowSeen(f.level, f.endsAt, f.updatedAt, f.now)
	return w
}

// counterView moves the windows on, as slid does.
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

// outcome returns a row's outcome.
func (f *fields) outcome(view algorithm.View) store.Outcome {
	o := taken(f.granted, f.updatedAt, f.blockedUntil, view)
	o.Ticket = f.ticket
	return o
}
