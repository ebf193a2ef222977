package exec

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/db"
)

// Distribute makes the statement of sqlc's function one that [OnShard] can send. It is called
// while packages are initialised, and does its work once a cluster is found.
func Distribute[P, R any](run func(context.Context, db.DBTX, P) (R, error)) {
	DistributeTexts(func(tell func(string, reflect.Type)) {
		tell(Text(func(tx db.DBTX) {
			var p P
			_, _ = run(context.Background(), tx, p)
		}), reflect.TypeFor[R]())
	})
}

// DistributeMany is [Distribute] for a statement that returns many rows.
func DistributeMany[P, R any](run func(context.Context, db.DBTX, P) ([]R, error)) {
	Distribute(func(ctx context.Context, tx db.DBTX, p P) (row R, err error) {
		_, err = run(ctx, tx, p)
		return row, err
	})
}

// DistributeTexts is [Distribute] for texts. Their rows are read into a type or, if a text is
// executed for the number of rows, counted.
func DistributeTexts(list func(tell func(text string, row reflect.Type))) {
	lists = append(lists, list)
}

// DistributeLater calls list once a cluster is found: many calls of [Distribute] cost nothing
// before.
func DistributeLater(list func()) { DistributeTexts(func(func(string, reflect.Type)) { list() }) }

var lists []func(tell func(text string, row reflect.Type))

// distribute registers a text.
func distribute(text string, row reflect.Type) {
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
