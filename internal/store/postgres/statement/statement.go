package statement

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// statement is a generated statement. On a connection of a pgx pool, some write their
// parameters and read their rows in PostgreSQL's binary format. Elsewhere sqlc's function
// sends the same text. Both take the names, the types and the order of parameters and
// columns from the structs that sqlc generates.
type statement struct {
	text    string
	params  []param
	columns []column
	row     reflect.Type // the generated struct of a row
	many    bool         // it returns a row for each key, not exactly one
	binary  *exec.Binary // nil: only sqlc's function sends it
	forms   sync.Pool
}

// lazy makes a statement at its first use: a program uses few of all.
type lazy func() *statement

// form holds the parameters and rows of one call of sqlc's function.
type form interface {
	params() any // a pointer to the generated struct
	send(context.Context, db.DBTX) (rows int, err error)
	row(i int) any // a pointer to the generated struct
	clear()
}

// one returns the statement of sqlc's function, which returns one row. A parameter whose
// name is in own means that.
func one[P, R any](run func(context.Context, db.DBTX, P) (R, error), own ...func() names) lazy {
	return sync.OnceValue(func() *statement {
		return newStatement(reflect.TypeFor[P](), reflect.TypeFor[R](), func() form { return &oneRow[P, R]{run: run} }, own).inBinary()
	})
}

// many is one for a statement that returns a row for each key.
func many[P, R any](run func(context.Context, db.DBTX, P) ([]R, error), own ...func() names) lazy {
	return sync.OnceValue(func() *statement {
		s := newStatement(reflect.TypeFor[P](), reflect.TypeFor[R](), func() form { return &manyRows[P, R]{run: run} }, own).inBinary()
		s.many = true
		return s
	})
}

// none is one for a statement that returns no row. Only sqlc's function sends it.
func none[P any](run func(context.Context, db.DBTX, P) error, own ...func() names) lazy {
	return sync.OnceValue(func() *statement {
		return newStatement(reflect.TypeFor[P](), reflect.TypeFor[struct{}](), func() form { return &oneRow[P, struct{}]{run: exec.WithoutRow(run)} }, own)
	})
}

// deletes is none for a statement that returns the number of rows that it deleted.
func deletes[P any](run func(context.Context, db.DBTX, P) (int64, error)) lazy {
	type row struct{ Deleted int64 }
	counted := func(ctx context.Context, tx db.DBTX, p P) (row, error) {
		n, err := run(ctx, tx, p)
		return row{n}, err
	}
	return sync.OnceValue(func() *statement {
		return newStatement(reflect.TypeFor[P](), reflect.TypeFor[row](), func() form { return &oneRow[P, row]{run: counted} }, nil)
	})
}

// number is deletes for a statement that returns another number, in the same place.
func number[P any](run func(context.Context, db.DBTX, P) (int64, error)) lazy { return deletes(run) }

// inBinary makes s go in binary where that can be sent.
func (s *statement) inBinary() *statement {
	var written, read []uint32
	for _, p := range s.params {
		written = append(written, p.oid)
	}
	for _, c := range s.columns {
		read = append(read, c.oid)
	}
	s.binary = exec.NewBinary(s.text, written, read)
	return s
}

// newStatement returns the statement of forms, whose generated structs are those of parameters and a
// row. It is not generic: a copy for each statement would be a quarter of a megabyte of every program.
func newStatement(parameters, row reflect.Type, newForm func() form, own []func() names) *statement {
	s := &statement{row: row, forms: sync.Pool{New: func() any { return newForm() }}}
	s.text = exec.Text(func(tx db.DBTX) { _, _ = newForm().send(context.Background(), tx) })
	for f := range generated(parameters) {
		p, ok := params()[f.Name]
		for _, n := range own {
			if o, has := n()[f.Name]; has {
				p, ok = o, true
			}
		}
		if !ok || p.field != f.Type {
			panic(fmt.Sprintf("pglimit: no description of parameter %s %v", f.Name, f.Type))
		}
		s.params = append(s.params, p)
	}
	for f := range generated(row) {
		c, ok := columns()[f.Name]
		if !ok || c.field != f.Type {
			panic(fmt.Sprintf("pglimit: no description of column %s %v", f.Name, f.Type))
		}
		c.name = f.Name
		s.columns = append(s.columns, c)
	}
	return s
}

// generated yields the fields of a generated struct.
func generated(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

type oneRow[P, R any] struct {
	run func(context.Context, db.DBTX, P) (R, error)
	p   P
	r   R
}

func (f *oneRow[P, R]) params() any { return &f.p }

func (f *oneRow[P, R]) send(ctx context.Context, tx db.DBTX) (n int, err error) {
	f.r, err = f.run(ctx, tx, f.p)
	return 1, err
}

func (f *oneRow[P, R]) row(int) any { return &f.r }

func (f *oneRow[P, R]) clear() { *f = oneRow[P, R]{run: f.run} }

type manyRows[P, R any] struct {
	run func(context.Context, db.DBTX, P) ([]R, error)
	p   P
	r   []R
}

func (f *manyRows[P, R]) params() any { return &f.p }

func (f *manyRows[P, R]) send(ctx context.Context, tx db.DBTX) (n int, err error) {
	f.r, err = f.run(ctx, tx, f.p)
	return len(f.r), err
}

func (f *manyRows[P, R]) row(i int) any { return &f.r[i] }

func (f *manyRows[P, R]) clear() { *f = manyRows[P, R]{run: f.run} }

// fill returns a form with the parameters.
func (s *statement) fill(w *wire) form {
	f := s.forms.Get().(form)
	v := reflect.ValueOf(f.params()).Elem()
	for i, p := range s.params {
		p.set(v.Field(i).Addr().Interface(), w)
	}
	return f
}

// run sends the statement, in binary if it can. w reads its rows, which are void after an
// error.
func (s *statement) run(ctx context.Context, tx db.DBTX, w *wire) error {
	ready, on, err := s.prepare(ctx, tx)
	if err != nil {
		return err
	}
	var params [][]byte
	if !ready.OK() || on != nil {
		f := s.fill(w)
		defer func() {
			f.clear()
			s.forms.Put(f)
		}()
		if !ready.OK() {
			return s.through(ctx, tx, f, w)
		}
		params = on.Params(s.text, values(f))
	} else {
		params = w.encode(s.params)
	}
	rows := ready.Query(ctx, params)
	var misread error
	found := 0
	for ; misread == nil && rows.Next(); found++ {
		if misread = w.fields.read(s.columns, rows.Row()); misread == nil {
			w.decide(max(1, len(w.rows)-found))
		}
	}
	err = ready.Close(rows)
	switch {
	case err != nil:
		return err
	case misread == nil && found == 0 && !s.many:
		return pgx.ErrNoRows
	}
	return misread
}

// prepare prepares the statement, or its call on a shard, if that can be sent in binary.
func (s *statement) prepare(ctx context.Context, tx db.DBTX) (ready exec.Ready, on *exec.Sharded, err error) {
	if s.binary == nil {
		return ready, nil, nil
	}
	if on, ok := tx.(exec.Sharded); ok {
		ready, err = on.Prepare(ctx, s.text)
		return ready, &on, err
	}
	ready, err = s.binary.Prepare(ctx, tx)
	return ready, nil, err
}

// values returns the parameters of a form.
func values(f form) []any {
	v := reflect.ValueOf(f.params()).Elem()
	all := make([]any, v.NumField())
	for i := range all {
		all[i] = v.Field(i).Interface()
	}
	return all
}

// through sends the statement by sqlc's function.
func (s *statement) through(ctx context.Context, tx db.DBTX, f form, w *wire) error {
	n, err := f.send(ctx, tx)
	if err != nil {
		return err
	}
	for i := range n {
		w.fields.copy(s.columns, f.row(i))
		w.decide(n - i)
	}
	return nil
}
