package statement

import (
	"encoding/binary"
	"math"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/internal/store"
)

// wire has what the parameters of one statement are taken from, and the row that was read
// last. Its memory is reused.
type wire struct {
	rows  []*store.Row // of a statement for many keys
	op    *store.Op    // of a statement for one key; a pipeline keeps pointers into its Admission
	query *store.Query // of op, or the first of rows
	now   *int64

	buf    []byte // all parameters
	ends   []int  // of each parameter in buf; -1 for NULL
	values [][]byte

	fields fields
	views  views
	view   viewer      // nil: no outcomes are set
	found  func(i int) // nil: the outcome of rows[i] is set

	expected int            // the index of the row that is expected next
	indexes  map[rowKey]int // of all rows; empty until a row comes out of order
}

type rowKey struct{ policy, key string }

var wires = sync.Pool{New: func() any { return new(wire) }}

// of returns a wire for a statement for one key.
func of(op *store.Op) *wire {
	w := wires.Get().(*wire)
	w.op, w.query, w.now, w.fields.clock = op, &op.Query, op.Now, op.Now
	return w
}

// ofRows returns a wire for a statement for many keys, with the caller's clock.
func ofRows(rows []*store.Row, now *int64) *wire {
	w := wires.Get().(*wire)
	w.rows, w.query, w.now, w.fields.clock = rows, rows[0].Query, now, now
	return w
}

// maxBuffer is the size of the largest buffer that is kept, in bytes.
const maxBuffer = 1 << 18

// free returns w to the pool, without what its callers own.
func (w *wire) free() {
	if cap(w.buf) > maxBuffer {
		return
	}
	clear(w.values)
	clear(w.indexes)
	*w = wire{buf: w.buf, ends: w.ends, values: w.values, indexes: w.indexes,
		fields: fields{policy: w.fields.policy, key: w.fields.key, state: w.fields.state, lots: w.fields.lots}}
	wires.Put(w)
}

// encode returns the parameters.
func (w *wire) encode(params []param) [][]byte {
	w.buf, w.ends, w.values = w.buf[:0], w.ends[:0], w.values[:0]
	for _, param := range params {
		written := len(w.ends)
		param.write(w)
		if len(w.ends) == written {
			w.ends = append(w.ends, len(w.buf))
		}
	}
	start := 0
	for _, end := range w.ends { // only now, because the buffer moves while it grows
		if end < 0 {
			w.values = append(w.values, nil)
			continue
		}
		w.values = append(w.values, w.buf[start:end:end])
		start = end
	}
	return w.values
}

// null writes NULL.
func (w *wire) null() { w.ends = append(w.ends, -1) }

// decide sets the outcome of the row that has come back, if the statement is for many
// keys. left is the number of rows that are expected, with this one.
func (w *wire) decide(left int) {
	if w.rows == nil {
		return
	}
	f := &w.fields
	i := w.index(f.policy, f.key)
	switch {
	case i < 0:
	case w.found != nil:
		w.found(i)
	default:
		r := w.rows[i]
		r.Outcome = f.outcome(w.view(&w.views, left, f, r.Query))
		if w.now != nil {
			r.Outcome.Now = *w.now
		}
	}
}

// index returns the index of a key's row, or -1. Rows come back in any order, but mostly in
// that in which they were sent.
func (w *wire) index(policy, key []byte) int {
	if w.expected < len(w.rows) {
		if q := w.rows[w.expected].Query; q.Key == string(key) && q.Policy == string(policy) {
			w.expected++
			return w.expected - 1
		}
	}
	if len(w.indexes) == 0 {
		if w.indexes == nil {
			w.indexes = make(map[rowKey]int, len(w.rows))
		}
		for i, r := range w.rows {
			w.indexes[rowKey{r.Query.Policy, r.Query.Key}] = i
		}
	}
	i, ok := w.indexes[rowKey{string(policy), string(key)}]
	if !ok {
		return -1
	}
	w.expected = i + 1
	return i
}

// param is one parameter of a statement, in both forms in which it is sent.
type param struct {
	oid   uint32
	field reflect.Type              // of the generated struct
	write func(*wire)               // in PostgreSQL's binary format
	set   func(field any, of *wire) // in the generated struct, by a pointer to the field
}

// names are parameters by their fields in the generated structs. sqlc's text decides their
// order.
type names = map[string]param

// params are the parameters of all statements. A few statements mean something else by a
// name; those say so in table.go.
var params = sync.OnceValue(func() names {
	return names{
		// of one key
		"Policy":     text(func(w *wire) string { return w.query.Policy }),
		"Key":        text(func(w *wire) string { return w.query.Key }),
		"Cost":       float(func(w *wire) float64 { return w.query.Cost }),
		"Count":      float(func(w *wire) float64 { return w.query.Count }),
		"Capacity":   float(func(w *wire) float64 { return w.query.Capacity }),
		"Room":       float(func(w *wire) float64 { return w.query.Room }),
		"Unit":       float(func(w *wire) float64 { return w.query.Unit }),
		"Leak":       float(func(w *wire) float64 { return w.query.Leak }),
		"TickUs":     integer(func(w *wire) int64 { return w.query.Tick }),
		"PeriodUs":   integer(func(w *wire) int64 { return w.query.Period }),
		"Aligned":    boolean(func(w *wire) bool { return w.query.Aligned }),
		"FromUs":     integer(func(w *wire) int64 { return w.query.Edges.From }),
		"TurnUs":     integer(func(w *wire) int64 { return w.query.Edges.Turn }),
		"UntilUs":    integer(func(w *wire) int64 { return w.query.Edges.Until }),
		"LifetimeUs": integer(func(w *wire) int64 { return w.query.Lifetime }),
		"BlockForUs": integer(func(w *wire) int64 { return blockOrFloor(w.query) }),
		"ForUs":      integer(func(w *wire) int64 { return w.op.ForUs }),
		"DeniedAtUs": integer(func(w *wire) int64 { return w.op.DeniedAt }),
		"Units":      float(func(w *wire) float64 { return w.query.Units }),
		"Burst":      float(func(w *wire) float64 { return w.query.Burst }),

		// of an Undo, a Leave
		"CountedAtUs": integer(func(w *wire) int64 { return w.op.Grant.At }),
		"EndsAtUs":    integer(func(w *wire) int64 { return w.op.Grant.EndsAt }),
		"Ticket":      integer(func(w *wire) int64 { return w.op.Ticket }),

		// of a Reserve
		"ID":         text(func(w *wire) string { return w.op.Admission.ID }),
		"State":      text(func(w *wire) string { return string(w.op.Admission.State) }),
		"LimitUnits": float(func(w *wire) float64 { return w.op.Admission.Limit }),
		"TtlUs":      integer(func(w *wire) int64 { return w.op.Admission.TTL }),
		"RememberUs": integer(func(w *wire) int64 { return w.op.Admission.Remember }),
		"IdempotencyKey": nullable(pgtype.TextOID, appendText, func(w *wire) *string {
			if w.op.Admission.Idempotency == "" {
				return nil
			}
			return &w.op.Admission.Idempotency
		}),

		"Requested": nullable(pgtype.Float8OID, appendFloat, func(w *wire) *float64 { return orNull(&w.op.Admission.Requested) }),
		"Estimate":  nullable(pgtype.Float8OID, appendFloat, func(w *wire) *float64 { return orNull(&w.op.Admission.Estimate) }),

		// of what is recorded, and of an Undo of a balance
		"Marks":    marks,
		"WindowUs": integer(func(w *wire) int64 { return w.query.Period }),
		"SpanUs":   integer(func(w *wire) int64 { return w.query.Sums.Span }), "KeptUs": integer(func(w *wire) int64 { return w.query.Sums.Keep }),
		"SpentLot":      integer(func(w *wire) int64 { return int64(w.op.Grant.Lot) }),
		"SpentEndUs":    integer(func(w *wire) int64 { return w.op.Grant.EndsAt }),
		"SpentPriority": integer(func(w *wire) int64 { return int64(w.op.Grant.Priority) }),

		// of a Grant
		"EndUs":    integer(func(w *wire) int64 { return w.op.Lot.Ends }),
		"Priority": integer(func(w *wire) int64 { return w.op.Lot.Priority }),
		"Source":   text(func(w *wire) string { return w.op.Lot.Source }), "Note": text(func(w *wire) string { return w.query.Note }),

		// of many keys
		"Policies":    texts(oneIfEqual, func(r *store.Row) string { return r.Query.Policy }),
		"Keys":        texts(perRow, func(r *store.Row) string { return r.Query.Key }),
		"Costs":       floats(oneIfEqual, func(r *store.Row) float64 { return r.Query.Cost }),
		"Counts":      floats(oneIfEqual, func(r *store.Row) float64 { return float64(r.Count) }),
		"Capacities":  floats(oneIfEqual, func(r *store.Row) float64 { return r.Query.Capacity }),
		"Leaks":       floats(oneIfEqual, func(r *store.Row) float64 { return r.Query.Leak }),
		"TicksUs":     integers(oneIfEqual, allRows, func(r *store.Row) int64 { return r.Query.Tick }),
		"PeriodsUs":   integers(oneIfEqual, allRows, func(r *store.Row) int64 { return r.Query.Period }),
		"AreAligned":  booleans(oneIfEqual, func(r *store.Row) bool { return r.Query.Aligned }),
		"FromsUs":     integers(oneIfEqual, calendarRows, func(r *store.Row) int64 { return r.Query.Edges.From }),
		"TurnsUs":     integers(oneIfEqual, calendarRows, func(r *store.Row) int64 { return r.Query.Edges.Turn }),
		"UntilsUs":    integers(oneIfEqual, calendarRows, func(r *store.Row) int64 { return r.Query.Edges.Until }),
		"LifetimesUs": integers(oneIfEqual, allRows, func(r *store.Row) int64 { return r.Query.Lifetime }),
		"BlocksForUs": integers(oneIfEqual, allRows, func(r *store.Row) int64 { return blockOrFloor(r.Query) }),

		// of both
		"NowUs":       nullable(pgtype.Int8OID, appendInteger, func(w *wire) *int64 { return w.now }),
		"Commit":      text(func(w *wire) string { return string(w.query.Commit) }),
		"LockTimeout": text(func(w *wire) string { return WaitText(w.query.LockWait) }),
	}
})

// blockOrFloor returns the BlockFor or, negated, the Floor: a request with a Floor begins no
// block, so one number carries both.
func blockOrFloor(q *store.Query) int64 { return q.BlockFor - q.Floor }

// elements is the number of elements the statements expect in an array.
type elements bool

const (
	perRow elements = false // one for each row
	// oneIfEqual is one for each row, or a single one if it is the same for all rows that
	// do not ignore the array.
	oneIfEqual elements = true
)

// allRows and calendarRows return the number of rows that an array reaches.
func allRows(rows []*store.Row) int { return len(rows) }

// calendarRows returns the number of rows up to the last one with a calendar: other rows
// ignore these arrays.
func calendarRows(rows []*store.Row) int {
	n := len(rows)
	for n > 0 && rows[n-1].Query.Calendar == nil {
		n--
	}
	return n
}

// orNull returns nil for 0.
func orNull(v *float64) *float64 {
	if *v == 0 {
		return nil
	}
	return v
}

func scalar[T any](oid uint32, appendTo func([]byte, T) []byte, of func(*wire) T) param {
	return param{
		oid, reflect.TypeFor[T](),
		func(w *wire) { w.buf = appendTo(w.buf, of(w)) },
		func(field any, w *wire) { *field.(*T) = of(w) },
	}
}

func nullable[T any](oid uint32, appendTo func([]byte, T) []byte, of func(*wire) *T) param {
	p := scalar(oid, nil, of)
	p.write = func(w *wire) {
		if v := of(w); v != nil {
			w.buf = appendTo(w.buf, *v)
		} else {
			w.null()
		}
	}
	return p
}

func text(of func(*wire) string) param { return scalar(pgtype.TextOID, appendText, of) }

func float(of func(*wire) float64) param { return scalar(pgtype.Float8OID, appendFloat, of) }

func integer(of func(*wire) int64) param { return scalar(pgtype.Int8OID, appendInteger, of) }

func boolean(of func(*wire) bool) param { return scalar(pgtype.BoolOID, appendBoolean, of) }

func texts(e elements, of func(*store.Row) string) param {
	element := func(to []byte, s string) []byte { return appendText(appendLength(to, len(s)), s) }
	return array(pgtype.TextArrayOID, pgtype.TextOID, e, allRows, of, element)
}

func floats(e elements, of func(*store.Row) float64) param {
	element := func(to []byte, f float64) []byte { return appendFloat(appendLength(to, 8), f) }
	return array(pgtype.Float8ArrayOID, pgtype.Float8OID, e, allRows, of, element)
}

func integers(e elements, reach func([]*store.Row) int, of func(*store.Row) int64) param {
	element := func(to []byte, i int64) []byte { return appendInteger(appendLength(to, 8), i) }
	return array(pgtype.Int8ArrayOID, pgtype.Int8OID, e, reach, of, element)
}

func booleans(e elements, of func(*store.Row) bool) param {
	element := func(to []byte, b bool) []byte { return appendBoolean(appendLength(to, 1), b) }
	return array(pgtype.BoolArrayOID, pgtype.BoolOID, e, allRows, of, element)
}

// array returns a parameter with the value of each row that it reaches.
func array[T comparable](oid, elementOID uint32, e elements, reach func([]*store.Row) int, of func(*store.Row) T, element func([]byte, T) []byte) param {
	sent := func(w *wire) []*store.Row {
		rows := w.rows[:reach(w.rows)]
		if e == oneIfEqual && allEqual(rows, of) {
			rows = rows[:min(1, len(rows))]
		}
		return rows
	}
	return param{
		oid, reflect.TypeFor[[]T](),
		func(w *wire) {
			rows := sent(w)
			w.buf = appendArray(w.buf, elementOID, len(rows))
			for _, r := range rows {
				w.buf = element(w.buf, of(r))
			}
		},
		func(field any, w *wire) {
			rows := sent(w)
			values := make([]T, len(rows))
			for i, r := range rows {
				values[i] = of(r)
			}
			*field.(*[]T) = values
		},
	}
}

func allEqual[T comparable](rows []*store.Row, of func(*store.Row) T) bool {
	for _, r := range rows {
		if of(r) != of(rows[0]) {
			return false
		}
	}
	return true
}

// appendArray appends what precedes the elements of an array without NULLs: the number of
// dimensions, a flag for NULLs, the type, the length and the index of the first element.
func appendArray(to []byte, elementOID uint32, length int) []byte {
	to = appendLength(to, 1)
	to = appendLength(to, 0)
	to = binary.BigEndian.AppendUint32(to, elementOID)
	to = appendLength(to, length)
	return appendLength(to, 1)
}

func appendLength(to []byte, n int) []byte { return binary.BigEndian.AppendUint32(to, uint32(n)) }

func appendText(to []byte, s string) []byte { return append(to, s...) }

func appendInteger(to []byte, i int64) []byte { return binary.BigEndian.AppendUint64(to, uint64(i)) }

func appendFloat(to []byte, f float64) []byte {
	return binary.BigEndian.AppendUint64(to, math.Float64bits(f))
}

func appendBoolean(to []byte, b bool) []byte {
	if b {
		return append(to, 1)
	}
	return append(to, 0)
}

// WaitText returns a LockWait as PostgreSQL's lock_timeout, or "" for none.
func WaitText(wait time.Duration) string {
	switch wait {
	case 0:
		return ""
	case shortWait:
		return shortWaitText
	}
	return milliseconds(wait)
}

// shortWait is the usual LockWait, whose text is made once.
const shortWait = 10 * time.Millisecond

var shortWaitText = milliseconds(shortWait)

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }
