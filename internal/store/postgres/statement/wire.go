package statement

import (
	"sync"

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
		fields: fields{policy: w.fields.policy, key: w.fields.key, state: w.fields.state}}
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
