package exec

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/db"
)

// Sharded is a DBTX whose statements are executed by the node that has the shard of its keys,
// against the shard's own tables. A statement must be one that Distribute was told of, and
// must touch no other key. If the keys are not in one shard, it fails with a shardMoved and
// changes nothing.
type Sharded struct {
	db.DBTX
	keys []string
}

// OnShard returns tx for statements about these keys, of one shard.
func OnShard(tx db.DBTX, keys ...string) Sharded { return Sharded{tx, keys} }

// shardCall is a statement as the function pglimit_on_shard takes it.
type shardCall struct {
	call *Binary // its rows have the statement's columns
	name string  // under which the node prepares it
	text string
}

// distributed are the statements that a Sharded can send, by their texts. They are made when
// the first is sent: most databases are no cluster.
var distributed = sync.OnceValue(func() map[string]shardCall {
	shardCalls = map[string]shardCall{}
	register(waits, waits, []uint32{pgtype.TextOID})
	for i := 0; i < len(lists); i++ { // a list may add others
		lists[i](distribute)
	}
	return shardCalls
})

var shardCalls map[string]shardCall

// register makes a statement one that a Sharded can send. columns are the types of those
// that it returns. A statement that returns none needs a text that does: the number of its
// rows is that of the rows changed.
func register(sql, text string, columns []uint32) {
	var words []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "--") // a comment
		words = append(words, strings.Fields(line)...)
	}
	text = strings.Join(words, " ")
	digest := sha256.Sum256([]byte(text))
	list := make([]string, len(columns))
	for i, oid := range columns {
		list[i] = fmt.Sprintf("c%d %s", i, typeNames[oid])
	}
	shardCalls[sql] = shardCall{
		call: NewBinary("SELECT * FROM pglimit_on_shard($1, $2, $3, $4, $5::text[]) AS t("+strings.Join(list, ", ")+")",
			[]uint32{pgtype.TextOID, pgtype.Int4OID, pgtype.TextOID, pgtype.TextOID, pgtype.TextArrayOID}, columns),
		name: "pglimit_" + hex.EncodeToString(digest[:16]) + "_", text: text,
	}
}

var typeNames = map[uint32]string{pgtype.TextOID: "text", pgtype.Float8OID: "float8", pgtype.Int8OID: "bigint", pgtype.BoolOID: "boolean"}

// find returns a statement that was distributed.
func find(sql string) shardCall {
	r, ok := distributed()[sql]
	if !ok {
		panic("pglimit: no shard's statement: " + sql)
	}
	return r
}

// keysAt returns the number of the parameter that lists the keys, or 0 for one key. The node
// compares them with its shard.
func (s Sharded) keysAt(args []any) int {
	at := 1 + slices.IndexFunc(args, func(a any) bool {
		list, ok := a.([]string)
		return ok && slices.Equal(list, s.keys)
	})
	if at == 0 && len(s.keys) > 1 {
		panic("pglimit: no parameter lists the keys of a shard's statement")
	}
	return at
}

// onShard returns the call of a statement and its parameters.
func (s Sharded) onShard(sql string, args []any) (string, []any) {
	r := find(sql)
	list := make([]byte, 0, 256)
	for _, a := range args {
		if text := textOf(a); text != nil {
			list = appendQuoted(append(list, ','), string(text))
		} else {
			list = append(list, ",NULL"...)
		}
	}
	return r.call.Text(), []any{s.keys[0], int64(s.keysAt(args)), r.name, r.text, string(closeArray(list))}
}

// waits sets the lock_timeout of a node's part of a transaction.
const waits = "SELECT set_config('lock_timeout'::text, $1::text, true)"

// BringLockTimeout gives the nodes of these keys' shards the lock_timeout that the transaction
// tx has here. *differs records that it was once another than the nodes' own.
func BringLockTimeout(ctx context.Context, tx db.DBTX, differs *bool, keys []string) error {
	var timeout, set string
	if err := tx.QueryRow(ctx, "SELECT current_setting('lock_timeout'::text)").Scan(&timeout); err != nil {
		return err
	}
	*differs = *differs || timeout != "0"
	if *differs {
		for _, key := range keys {
			if err := OnShard(tx, key).QueryRow(ctx, waits, timeout).Scan(&set); err != nil {
				return err
			}
		}
	}
	return nil
}

// Prepare prepares the call of a statement; see Binary's.
func (s Sharded) Prepare(ctx context.Context, sql string) (Ready, error) {
	return find(sql).call.Prepare(ctx, s.DBTX)
}

// Params returns the parameters of that call in PostgreSQL's binary format.
func (s Sharded) Params(sql string, args []any) [][]byte {
	r := find(sql)
	list, nulls := binary.BigEndian.AppendUint32(nil, 1), uint32(0)
	list = append(list, 0, 0, 0, 0, 0, 0, 0, pgtype.TextOID)
	list = binary.BigEndian.AppendUint32(list, uint32(len(args)))
	list = binary.BigEndian.AppendUint32(list, 1)
	for _, a := range args {
		text := textOf(a)
		if text == nil {
			list, nulls = binary.BigEndian.AppendUint32(list, math.MaxUint32), 1
			continue
		}
		list = append(binary.BigEndian.AppendUint32(list, uint32(len(text))), text...)
	}
	binary.BigEndian.PutUint32(list[4:], nulls)
	return [][]byte{[]byte(s.keys[0]), binary.BigEndian.AppendUint32(nil, uint32(s.keysAt(args))), []byte(r.name), []byte(r.text), list}
}

func (s Sharded) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	sql, args = s.onShard(sql, args)
	return s.DBTX.Query(ctx, sql, args...)
}

func (s Sharded) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	sql, args = s.onShard(sql, args)
	return s.DBTX.QueryRow(ctx, sql, args...)
}

func (s Sharded) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, err := s.Query(ctx, sql, args...)
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

// textOf returns PostgreSQL's text of a parameter, or nil for NULL.
func textOf(value any) []byte {
	switch v := value.(type) {
	case nil:
		return nil
	case *int64:
		if v == nil {
			return nil
		}
		return strconv.AppendInt(nil, *v, 10)
	case *float64:
		if v == nil {
			return nil
		}
		return appendNumber(nil, *v)
	case *string:
		if v == nil {
			return nil
		}
		return append([]byte{}, *v...)
	case string:
		return append([]byte{}, v...)
	case bool:
		return strconv.AppendBool(nil, v)
	case int64:
		return strconv.AppendInt(nil, v, 10)
	case float64:
		return appendNumber(nil, v)
	case []string:
		return textOfList(v, appendQuoted)
	case []int64:
		return textOfList(v, func(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) })
	case []bool:
		return textOfList(v, strconv.AppendBool)
	case []float64:
		return textOfList(v, appendNumber)
	}
	panic(fmt.Sprintf("pglimit: no text of a parameter %T", value))
}

func textOfList[T any](list []T, element func([]byte, T) []byte) (b []byte) {
	for _, v := range list {
		b = element(append(b, ','), v)
	}
	return closeArray(b)
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
