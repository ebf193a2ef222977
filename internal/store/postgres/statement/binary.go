package statement

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// On a connection of a pgx pool, Take and TakeMany write their parameters and read their
// rows in PostgreSQL's binary format. Elsewhere sqlc's functions send the same text. Both
// take the order of parameters and columns from the structs that sqlc generates.

// plan is how to write the parameters of a statement and read its rows.
type plan struct {
	*exec.Binary
	params  []param
	columns []column
}

// newPlan returns the plan of the statement with that text, whose generated structs are P
// and R.
func newPlan[P, R any](sql string) *plan {
	p := new(plan)
	var written, read []uint32
	for f := range generated[P]() {
		w, ok := params[f.Name]
		if !ok || w.field != f.Type {
			panic(fmt.Sprintf("pglimit: no binary form of parameter %s %v", f.Name, f.Type))
		}
		p.params, written = append(p.params, w), append(written, w.oid)
	}
	for f := range generated[R]() {
		c, ok := columns[f.Name]
		if !ok || c.field != f.Type {
			panic(fmt.Sprintf("pglimit: no binary form of column %s %v", f.Name, f.Type))
		}
		c.name = f.Name
		p.columns, read = append(p.columns, c), append(read, c.oid)
	}
	p.Binary = exec.NewBinary(sql, written, read)
	return p
}

// Binaries returns the statements that are sent in binary, each with the fields that its
// columns are read into.
func Binaries() map[*exec.Binary][]string {
	all := map[*exec.Binary][]string{}
	for _, t := range tables {
		for _, p := range t.binary.plans() {
			for _, c := range p.columns {
				all[p.Binary] = append(all[p.Binary], c.name)
			}
		}
	}
	return all
}

// generated yields the fields of a generated struct.
func generated[T any]() func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		t := reflect.TypeFor[T]()
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// inBinary is an algorithm's Take and TakeMany in binary.
type inBinary struct {
	take, takeMany *plan
	view           viewer
	calendar       *plan // the Take of a query with a calendar
}

var (
	leakyBucketBinary = inBinary{
		newPlan[db.LeakyBucketTakeParams, db.LeakyBucketTakeRow](db.LeakyBucketTake),
		newPlan[db.LeakyBucketTakeManyParams, db.LeakyBucketTakeManyRow](db.LeakyBucketTakeMany), leakyView, nil,
	}
	leakyBucketQueueBinary = inBinary{
		newPlan[db.LeakyBucketQueueTakeParams, db.LeakyBucketQueueTakeRow](db.LeakyBucketQueueTake),
		newPlan[db.LeakyBucketQueueTakeManyParams, db.LeakyBucketQueueTakeManyRow](db.LeakyBucketQueueTakeMany), bucketView, nil,
	}
	tokenBucketBinary = inBinary{
		newPlan[db.TokenBucketTakeParams, db.TokenBucketTakeRow](db.TokenBucketTake),
		newPlan[db.TokenBucketTakeManyParams, db.TokenBucketTakeManyRow](db.TokenBucketTakeMany), bucketView, nil,
	}
	gcraBinary = inBinary{
		newPlan[db.GCRATakeParams, db.GCRATakeRow](db.GCRATake),
		newPlan[db.GCRATakeManyParams, db.GCRATakeManyRow](db.GCRATakeMany), bucketView, nil,
	}
	fixedWindowBinary = inBinary{
		newPlan[db.FixedWindowTakeParams, db.FixedWindowTakeRow](db.FixedWindowTake),
		newPlan[db.FixedWindowTakeManyParams, db.FixedWindowTakeManyRow](db.FixedWindowTakeMany), windowView,
		newPlan[db.FixedWindowCalendarTakeParams, db.FixedWindowCalendarTakeRow](db.FixedWindowCalendarTake),
	}
	slidingWindowCounterBinary = inBinary{
		newPlan[db.SlidingWindowCounterTakeParams, db.SlidingWindowCounterTakeRow](db.SlidingWindowCounterTake),
		newPlan[db.SlidingWindowCounterTakeManyParams, db.SlidingWindowCounterTakeManyRow](db.SlidingWindowCounterTakeMany), counterView, nil,
	}
	slidingWindowLogBinary = inBinary{
		newPlan[db.SlidingWindowLogTakeParams, db.SlidingWindowLogTakeRow](db.SlidingWindowLogTake),
		newPlan[db.SlidingWindowLogTakeManyParams, db.SlidingWindowLogTakeManyRow](db.SlidingWindowLogTakeMany), logView, nil,
	}
)

// plans returns the plans of an algorithm.
func (b *inBinary) plans() []*plan {
	all := []*plan{b.take, b.takeMany}
	if b.calendar != nil {
		all = append(all, b.calendar)
	}
	return all
}

// orElse returns a Take in binary where that can be sent, and elsewhere otherwise.
func (b *inBinary) orElse(otherwise decision) decision {
	return func(ctx context.Context, tx db.DBTX, q *store.Query) (store.Outcome, error) {
		take := b.take
		if q.Calendar != nil {
			take = b.calendar
		}
		ready, err := take.Prepare(ctx, tx)
		switch {
		case err != nil:
			return store.Outcome{}, err
		case !ready.OK():
			return otherwise(ctx, tx, q)
		}
		w := wires.Get().(*wire)
		defer w.free()
		w.query, w.now, w.fields.now = q, q.Now, q.Now
		o, err := w.takeOne(ctx, ready, take, b.view)
		if q.Calendar != nil {
			err = inPeriod(w.fields.granted, err)
		}
		return o, err
	}
}

// many runs a TakeMany in binary. It reports false if that cannot be sent over tx.
func (b *inBinary) many(ctx context.Context, tx db.DBTX, rows []*store.Row, now *int64) (sent bool, err error) {
	ready, err := b.takeMany.Prepare(ctx, tx)
	if err != nil || !ready.OK() {
		return err != nil, err
	}
	w := wires.Get().(*wire)
	defer w.free()
	w.rows, w.query, w.now, w.fields.now = rows, rows[0].Query, now, now
	if err := w.takeAll(ctx, ready, b); err != nil {
		for _, r := range rows {
			r.Outcome = store.Outcome{} // rows that were read before an error are void
		}
		return true, err
	}
	return true, allDecided(rows)
}

// wire has the parameters of one statement and the row read last. Its memory is reused.
type wire struct {
	rows  []*store.Row // of a TakeMany
	query *store.Query // of a Take; the first of a TakeMany
	now   *int64

	buf    []byte // all parameters
	ends   []int  // of each parameter in buf; -1 for NULL
	values [][]byte

	fields fields
	views  views

	expected int            // the index of the row that is expected next
	indexes  map[rowKey]int // of all rows; empty until a row comes out of order
}

type rowKey struct{ policy, key string }

var wires = sync.Pool{New: func() any { return new(wire) }}

// maxBuffer is the size of the largest buffer that is kept, in bytes.
const maxBuffer = 1 << 18

// free returns w to the pool, without what its callers own.
func (w *wire) free() {
	if cap(w.buf) > maxBuffer {
		return
	}
	clear(w.values)
	clear(w.indexes)
	*w = wire{buf: w.buf, ends: w.ends, values: w.values, indexes: w.indexes}
	wires.Put(w)
}

// encode returns the parameters of p.
func (w *wire) encode(p *plan) [][]byte {
	w.buf, w.ends, w.values = w.buf[:0], w.ends[:0], w.values[:0]
	for _, param := range p.params {
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

// takeOne returns pgx.ErrNoRows if the statement returns no row.
func (w *wire) takeOne(ctx context.Context, ready exec.Ready, p *plan, view viewer) (store.Outcome, error) {
	rows := ready.Query(ctx, w.encode(p))
	found := rows.NextRow()
	var misread error
	if found {
		misread = w.fields.read(p.columns, rows.Values())
	}
	err := ready.Close(rows)
	switch {
	case err != nil:
	case !found:
		err = pgx.ErrNoRows
	case misread != nil:
		err = misread
	default:
		return w.fields.outcome(view(&w.views, 1, &w.fields, w.query)), nil
	}
	return store.Outcome{}, err
}

// takeAll sets the outcomes of the rows. After an error they are void.
func (w *wire) takeAll(ctx context.Context, ready exec.Ready, b *inBinary) error {
	rows := ready.Query(ctx, w.encode(b.takeMany))
	var misread error
	for left := len(w.rows); misread == nil && rows.NextRow(); left-- {
		misread = w.decide(b, max(1, left), rows.Values())
	}
	if err := ready.Close(rows); err != nil {
		return err
	}
	return misread
}

// decide sets the outcome of the row that has come back. left is the number of rows that
// are expected, with this one.
func (w *wire) decide(b *inBinary, left int, values [][]byte) error {
	f := &w.fields
	if err := f.read(b.takeMany.columns, values); err != nil {
		return err
	}
	r := w.row(f.policy, f.key)
	if r == nil {
		return nil
	}
	r.Outcome = f.outcome(b.view(&w.views, left, f, r.Query))
	if w.now != nil {
		r.Outcome.Now = *w.now
	}
	return nil
}

// row returns the row of a key, or nil. Rows come back in any order, but mostly in that in
// which they were sent.
func (w *wire) row(policy, key []byte) *store.Row {
	if w.expected < len(w.rows) {
		if r := w.rows[w.expected]; r.Query.Key == string(key) && r.Query.Policy == string(policy) {
			w.expected++
			return r
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
		return nil
	}
	w.expected = i + 1
	return w.rows[i]
}
