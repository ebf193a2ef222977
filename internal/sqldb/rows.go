package sqldb

import (
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// rows has all rows of an answer. It implements the methods of pgx.Rows that db/, and pgx's
// functions for rows, use.
type rows struct {
	pgx.Rows // nil

	columns []string
	all     [][]any
	next    int // the row after the one that Scan reads
}

func (r *rows) Close()     {}
func (r *rows) Err() error { return nil } // an error is returned instead of rows

func (r *rows) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }

// RawValues returns as many values as there are columns, for pgx.RowToStructByPos.
func (r *rows) RawValues() [][]byte { return make([][]byte, len(r.columns)) }

func (r *rows) Next() bool {
	r.next++
	return r.next <= len(r.all)
}

func (r *rows) Scan(dest ...any) error {
	values := r.all[r.next-1]
	if len(dest) != len(values) {
		return fmt.Errorf("%d columns came back for %d variables", len(values), len(dest))
	}
	for i, d := range dest {
		if err := assign(d, values[i]); err != nil {
			return fmt.Errorf("column %s: %w", r.columns[i], err)
		}
	}
	return nil
}

// row is the first row, or an error.
type row struct {
	pgx.Rows
	err error
}

func (r row) Scan(dest ...any) error {
	switch {
	case r.err != nil:
		return r.err
	case !r.Next():
		return pgx.ErrNoRows
	}
	return r.Rows.Scan(dest...)
}

// readAll reads to the end of the statement, which also reports a failed commit.
func readAll(from *sql.Rows) (r *rows, err error) {
	defer func() { err = errors.Join(err, from.Close()) }()
	columns, err := from.Columns()
	if err != nil {
		return nil, err
	}
	r = &rows{columns: columns}
	for from.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := from.Scan(into...); err != nil {
			return nil, err
		}
		r.all = append(r.all, values)
	}
	return r, from.Err()
}

// assign stores a value that a driver returned.
func assign(dest, v any) error {
	switch d := dest.(type) {
	case *string:
		return assignTo(d, v)
	case *float64:
		return assignTo(d, v)
	case *int64:
		return assignTo(d, v)
	case *bool:
		return assignTo(d, v)
	case *int:
		return assignTo(d, v)
	case *int32:
		return assignTo(d, v)
	case *uint32:
		return assignTo(d, v)
	case *time.Time:
		return assignTo(d, v)
	case *[]string, *[]int64, *[]float64:
		return pgtype.NewMap().SQLScanner(d).Scan(v)
	case **time.Time:
		return assignNullable(d, v)
	case **string:
		return assignNullable(d, v)
	case **float64:
		return assignNullable(d, v)
	case **int64:
		return assignNullable(d, v)
	case **bool:
		return assignNullable(d, v)
	}
	return fmt.Errorf("no conversion to a %T", dest)
}

func assignTo[T any](dest *T, v any) error {
	if same, ok := v.(T); ok {
		*dest = same
		return nil
	}
	var converted sql.Null[T] // drivers may return text
	if err := converted.Scan(v); err != nil {
		return err
	}
	if !converted.Valid {
		return fmt.Errorf("NULL for a %T", *dest)
	}
	*dest = converted.V
	return nil
}

func assignNullable[T any](dest **T, v any) error {
	*dest = nil
	if v == nil {
		return nil
	}
	*dest = new(T)
	return assignTo(*dest, v)
}
