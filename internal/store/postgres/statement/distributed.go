package statement

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// The statements about reservations that no Table has.
func init() {
	distribute(Queries.ReservationByIdempotency)
	distributeMany(Queries.ReservationsDue)
	distribute(Queries.ReservationLocked)
	distribute(Queries.ReservationForget)
	distribute(Queries.ReservationConfirm)
	distribute(withoutRow(Queries.ReservationsFree))
}

// distribute makes the statement of sqlc's function one that exec.OnShard can send.
func distribute[P, R any](run func(context.Context, db.DBTX, P) (R, error)) {
	text := exec.Text(func(tx db.DBTX) {
		var p P
		_, _ = run(context.Background(), tx, p)
	})
	distributeAs(text, reflect.TypeFor[R]())
}

// distributeMany is distribute for a statement that returns many rows.
func distributeMany[P, R any](run func(context.Context, db.DBTX, P) ([]R, error)) {
	distribute(func(ctx context.Context, tx db.DBTX, p P) (row R, err error) {
		_, err = run(ctx, tx, p)
		return row, err
	})
}

// distributeAs is distribute for a text, whose rows are read into that type or, if it is
// executed for their number, counted.
func distributeAs(text string, row reflect.Type) {
	counted, columns := strings.TrimSpace(text), []uint32{pgtype.TextOID}
	if name, _, _ := strings.Cut(text, "\n"); !strings.Contains(name, " :exec") {
		columns = columnsOf(row)
	} else {
		if last := counted[strings.LastIndex(counted, "\n")+1:]; !strings.HasPrefix(last, "SELECT") && !strings.HasPrefix(last, "FOR ") {
			counted += "\nRETURNING ''::text"
		}
	}
	exec.Distribute(text, counted, columns)
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

func withoutRow[P any](run func(context.Context, db.DBTX, P) error) func(context.Context, db.DBTX, P) (struct{}, error) {
	return func(ctx context.Context, tx db.DBTX, p P) (row struct{}, err error) { return row, run(ctx, tx, p) }
}
