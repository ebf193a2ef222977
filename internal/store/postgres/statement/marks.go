package statement

import (
	"reflect"

	"github.com/jackc/pgx/v5/pgtype"
)

// marks are those of the query.
var marks = param{
	pgtype.Int8ArrayOID, reflect.TypeFor[[]int64](),
	func(w *wire) {
		w.buf = appendArray(w.buf, pgtype.Int8OID, len(w.query.Marks))
		for _, m := range w.query.Marks {
			w.buf = appendInteger(appendLength(w.buf, 8), m)
		}
	},
	func(field any, w *wire) { *field.(*[]int64) = w.query.Marks },
}
