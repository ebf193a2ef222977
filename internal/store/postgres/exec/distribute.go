package exec

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/db"
)

// Distribute makes the statement of sqlc's function one that [OnShard] can send.
func Distribute[P, R any](run func(context.Context, db.DBTX, P) (R, error)) {
	text := Text(func(tx db.DBTX) {
		var p P
		_, _ = run(context.Background(), tx, p)
	})
	DistributeText(text, reflect.TypeFor[R]())
}

// DistributeMany is [Distribute] for a statement that returns many rows.
func DistributeMany[P, R any](run func(context.Context, db.DBTX, P) ([]R, error)) {
	Distribute(func(ctx context.Context, tx db.DBTX, p P) (row R, err error) {
		_, err = run(ctx, tx, p)
		return row, err
	})
}

// DistributeText is [Distribute] for a text, whose rows are read into that type or, if it is
// executed for their number, counted.
func DistributeText(text string, row reflect.Type) {
	counted, columns := strings.TrimSpace(text), []uint32{pgtype.TextOID}
	if name, _, _ := strings.Cut(text, "\n"); !strings.Contains(name, " :exec") {
		columns = columnsOf(row)
	} else if last := counted[strings.LastIndex(counted, "\n")+1:]; !strings.HasPrefix(last, "SELECT") && !strings.HasPrefix(last, "FOR ") {
		counted += "\nRETURNING ''::text"
	}
	register(text, counted, columns)
}

// columnsOf returns the types that the fields of a row's struct, or a row's only column, are
// read from.
func columnsOf(t reflect.Type) (columns []uint32) {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			columns = append(columns, columnsOf(t.Field(i).Type)...)
		}
		return columns
	case reflect.String:
		return []uint32{pgtype.TextOID}
	case reflect.Float64:
		return []uint32{pgtype.Float8OID}
	case reflect.Int64:
		return []uint32{pgtype.Int8OID}
	case reflect.Bool:
		return []uint32{pgtype.BoolOID}
	}
	panic(fmt.Sprintf("pglimit: no column of type %v", t))
}

// WithoutRow gives a function that returns no row an empty one, for [Distribute].
func WithoutRow[P any](run func(context.Context, db.DBTX, P) error) func(context.Context, db.DBTX, P) (struct{}, error) {
	return func(ctx context.Context, tx db.DBTX, p P) (row struct{}, err error) { return row, run(ctx, tx, p) }
}
