package statement

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"

	"github.com/jackc/pgx/v5/pgtype"
)

// fields is one row of any statement. Each has only some of them.
type fields struct {
	policy, key, state                                []byte // valid until the next row is read
	granted, level, current, previous                 float64
	leakedAt, ticket, period, endsAt, newest, freesAt int64
	now, updatedAt, blockedUntil                      int64
	clock                                             *int64 // that the statement was sent with

	reservations, deleted                int64
	reserved, unitsBefore, limit         float64
	burst, capacity, leak                float64
	tick, expiresAt, settledAt, windowOf int64
	changes, freed                       bool
}

// column is one column of a statement, in both forms in which it is read. read reports
// whether the value had the length of its type and was not NULL.
type column struct {
	name  string // of the field, set in a statement
	oid   uint32
	field reflect.Type               // of the generated struct
	read  func(*fields, []byte) bool // from PostgreSQL's binary format
	copy  func(f *fields, field any) // from the generated struct, by a pointer to its field
}

// columns are the columns of all statements by their fields in the generated structs.
// sqlc's text decides their order.
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
	"NowUs":          integerColumn(func(f *fields) *int64 { return &f.now }),
	"UpdatedAtUs":    integerColumn(func(f *fields) *int64 { return &f.updatedAt }),
	"BlockedUntilUs": integerColumn(func(f *fields) *int64 { return &f.blockedUntil }),

	// of a Usage
	"Reservations": integerColumn(func(f *fields) *int64 { return &f.reservations }),
	"Reserved":     floatColumn(func(f *fields) *float64 { return &f.reserved }),

	// of a Settle
	"State":       textColumn(func(f *fields) *[]byte { return &f.state }),
	"UnitsBefore": floatColumn(func(f *fields) *float64 { return &f.unitsBefore }),
	"Changes":     booleanColumn(func(f *fields) *bool { return &f.changes }),
	"Freed":       booleanColumn(func(f *fields) *bool { return &f.freed }),
	"LimitUnits":  floatColumn(func(f *fields) *float64 { return &f.limit }),
	"Burst":       floatColumn(func(f *fields) *float64 { return &f.burst }),
	"Capacity":    floatColumn(func(f *fields) *float64 { return &f.capacity }),
	"Leak":        floatColumn(func(f *fields) *float64 { return &f.leak }),
	"TickUs":      integerColumn(func(f *fields) *int64 { return &f.tick }),
	"ExpiresAtUs": integerColumn(func(f *fields) *int64 { return &f.expiresAt }),
	"AtUs":        integerColumn(func(f *fields) *int64 { return &f.settledAt }),
	"WindowUs":    integerColumn(func(f *fields) *int64 { return &f.windowOf }),

	// of a Reset: the number of rows
	"Deleted": integerColumn(func(f *fields) *int64 { return &f.deleted }),
}

func textColumn(to func(*fields) *[]byte) column {
	return column{
		"", pgtype.TextOID, reflect.TypeFor[string](),
		func(f *fields, value []byte) bool {
			*to(f) = append((*to(f))[:0], value...)
			return value != nil
		},
		func(f *fields, field any) { *to(f) = append((*to(f))[:0], *field.(*string)...) },
	}
}

func floatColumn(to func(*fields) *float64) column {
	return fixed(pgtype.Float8OID, 8, to, func(v []byte) float64 { return math.Float64frombits(binary.BigEndian.Uint64(v)) })
}

func integerColumn(to func(*fields) *int64) column {
	return fixed(pgtype.Int8OID, 8, to, func(v []byte) int64 { return int64(binary.BigEndian.Uint64(v)) })
}

func booleanColumn(to func(*fields) *bool) column {
	return fixed(pgtype.BoolOID, 1, to, func(v []byte) bool { return v[0] != 0 })
}

// fixed returns a column whose values have that many bytes.
func fixed[T any](oid uint32, size int, to func(*fields) *T, value func([]byte) T) column {
	return column{
		"", oid, reflect.TypeFor[T](),
		func(f *fields, v []byte) bool {
			if len(v) != size {
				return false
			}
			*to(f) = value(v)
			return true
		},
		func(f *fields, field any) { *to(f) = *field.(*T) },
	}
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

// copy copies one row of sqlc's function, by a pointer to its struct.
func (f *fields) copy(columns []column, row any) {
	v := reflect.ValueOf(row).Elem()
	for i, c := range columns {
		c.copy(f, v.Field(i).Addr().Interface())
	}
}
