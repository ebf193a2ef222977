package exec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// OnShard returns a DBTX whose statements are executed by the node that has the shard of
// these keys, against the shard's own tables. A statement must be one that Distribute was
// told of, and must touch no other key. If the keys are not in one shard, it fails with a
// shardMoved and changes nothing.
func OnShard(tx db.DBTX, keys ...string) db.DBTX { return onShard{tx, keys} }

type onShard struct {
	db.DBTX
	keys []string
}

// routed is a statement as the function pglimit_on_shard takes it.
type routed struct {
	call string // its rows have the statement's columns
	name string // under which the node prepares it
	text string
}

// comment is a comment to the end of its line.
var comment = regexp.MustCompile(`--.*`)

var distributed = map[string]routed{}

// Distribute makes a statement one that OnShard can send. columns are those that it returns,
// as a column definition list. A statement that returns none needs a text that does: the
// number of its rows is that of the rows changed.
func Distribute(sql, text, columns string) {
	text = strings.Join(strings.Fields(comment.ReplaceAllString(text, "")), " ")
	digest := sha256.Sum256([]byte(text))
	distributed[sql] = routed{
		call: "SELECT * FROM pglimit_on_shard($1, $2, $3, $4, $5::text[]) AS t(" + columns + ")",
		name: "pglimit_" + hex.EncodeToString(digest[:16]) + "_", text: text,
	}
}

// route returns the call of a statement and its arguments.
func (o onShard) route(sql string, args []any) (string, []any) {
	r, ok := distributed[sql]
	if !ok {
		panic("pglimit: no shard's statement: " + sql)
	}
	keysAt, values := 0, make([]byte, 0, 256)
	for i, a := range args {
		if list, ok := a.([]string); ok && keysAt == 0 && slices.Equal(list, o.keys) {
			keysAt = i + 1
		}
		values = appendElement(values, a)
	}
	return r.call, []any{o.keys[0], keysAt, r.name, r.text, string(closeArray(values))}
}

func (o onShard) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	sql, args = o.route(sql, args)
	return o.DBTX.Query(ctx, sql, args...)
}

func (o onShard) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	sql, args = o.route(sql, args)
	return o.DBTX.QueryRow(ctx, sql, args...)
}

func (o onShard) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := o.Query(ctx, sql, args...)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		n++
	}
	return pgconn.NewCommandTag("SELECT " + strconv.Itoa(n)), rows.Err()
}

// appendElement appends a parameter, as PostgreSQL's text of it, to the text of an array.
func appendElement(b []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(b, ",NULL"...)
	case *int64:
		if v == nil {
			return append(b, ",NULL"...)
		}
		return strconv.AppendInt(append(b, ','), *v, 10)
	case *string:
		if v == nil {
			return append(b, ",NULL"...)
		}
		return appendQuoted(append(b, ','), *v)
	case string:
		return appendQuoted(append(b, ','), v)
	case bool:
		return strconv.AppendBool(append(b, ','), v)
	case int64:
		return strconv.AppendInt(append(b, ','), v, 10)
	case float64:
		return appendNumber(append(b, ','), v)
	case []string:
		return appendList(b, v, appendQuoted)
	case []int64:
		return appendList(b, v, func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) })
	case []bool:
		return appendList(b, v, strconv.AppendBool)
	case []float64:
		return appendList(b, v, appendNumber)
	}
	panic(fmt.Sprintf("pglimit: no text of a parameter %T", value))
}

// appendList appends an array as one quoted element.
func appendList[T any](b []byte, list []T, element func([]byte, T) []byte) []byte {
	var inner []byte
	for _, v := range list {
		inner = element(append(inner, ','), v)
	}
	return appendQuoted(append(b, ','), string(closeArray(inner)))
}

// closeArray makes elements, each after a comma, an array.
func closeArray(elements []byte) []byte {
	if len(elements) == 0 {
		return []byte("{}")
	}
	elements[0] = '{'
	return append(elements, '}')
}

func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// appendNumber appends the shortest text that reads as v. PostgreSQL reads Go's words for
// values that are no numbers.
func appendNumber(b []byte, v float64) []byte { return strconv.AppendFloat(b, v, 'g', -1, 64) }
