package sqldb

import (
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// encode converts parameters to types that every driver accepts and the statements cast.
// A pgx.QueryExecMode before them stays there, for pgx's driver.
func encode(args []any) ([]any, error) {
	if len(args) > 0 {
		if mode, ok := args[0].(pgx.QueryExecMode); ok {
			out, err := encode(args[1:])
			return append([]any{mode}, out...), err
		}
	}
	out := make([]any, len(args))
	for i, a := range args {
		v, err := encodeOne(a)
		if err != nil {
			return nil, fmt.Errorf("parameter $%d: %w", i+1, err)
		}
		out[i] = v
	}
	return out, nil
}

func encodeOne(a any) (any, error) {
	switch v := a.(type) {
	case nil, string, bool, float64, int64:
		return v, nil
	case *string:
		return orNull(v), nil
	case *bool:
		return orNull(v), nil
	case *float64:
		return orNull(v), nil
	case *int64:
		return orNull(v), nil
	case []string:
		return array(v, appendText), nil
	case []bool:
		return array(v, strconv.AppendBool), nil
	case uint32:
		return int64(v), nil
	case []uint32:
		return array(v, func(b []byte, n uint32) []byte { return strconv.AppendUint(b, uint64(n), 10) }), nil
	case []float64:
		return array(v, appendFloat), nil
	case []int64:
		return array(v, func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }), nil
	}
	return nil, fmt.Errorf("a %T cannot be sent over database/sql", a)
}

// orNull returns NULL for nil.
func orNull[T any](p *T) any {
	if p == nil {
		return nil
	}
	return *p
}

// array returns a PostgreSQL array literal. nil is NULL, as with pgx.
func array[T any](all []T, appendOne func([]byte, T) []byte) any {
	if all == nil {
		return nil
	}
	b := []byte{'{'}
	for i, v := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOne(b, v)
	}
	return string(append(b, '}'))
}

// appendText always quotes. Then commas, braces, spaces, the empty text and the word NULL
// need no special treatment, and only two characters need an escape.
func appendText(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// appendFloat appends the shortest number that reads back as f.
func appendFloat(b []byte, f float64) []byte { return strconv.AppendFloat(b, f, 'g', -1, 64) }
