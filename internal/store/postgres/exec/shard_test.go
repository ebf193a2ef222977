package exec

import (
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

func init() {
	DistributeTexts(func(func(string, reflect.Type)) {
		register("-- test", "DELETE -- test\n RETURNING ''::text", []uint32{pgtype.TextOID})
	})
}

// TestOnShard: a statement goes to the first of its keys, says which parameter lists them,
// and has its parameters as PostgreSQL's text of an array.
func TestOnShard(t *testing.T) {
	now, null, part := int64(-7), (*int64)(nil), 2.5
	hostile := []string{`a"b\,{}`, "NULL", ""}
	for _, c := range []struct {
		keys   []string
		args   []any
		keysAt int64
		want   string
	}{
		{[]string{"k"}, nil, 0, `{}`},
		{[]string{"k"}, []any{"p", "k", 0.1, int64(3), true, &now, null, nil, (*string)(nil), &part, (*float64)(nil)}, 0, `{"p","k","0.1","3","true","-7",NULL,NULL,NULL,"2.5",NULL}`},
		{hostile, []any{[]float64{1e300, math.Inf(1)}, hostile, []int64{}, hostile}, 2,
			`{"{1e+300,+Inf}","{\"a\\\"b\\\\,{}\",\"NULL\",\"\"}","{}","{\"a\\\"b\\\\,{}\",\"NULL\",\"\"}"}`},
	} {
		var sent pgx.Batch
		_, err := OnShard(recorder{&sent}, c.keys...).Query(t.Context(), "-- test", c.args...)
		if err != errRecorded {
			t.Fatal(err)
		}
		got := sent.QueuedQueries[0].Arguments
		if got[0] != c.keys[0] || got[1] != int64(c.keysAt) || got[3] != "DELETE RETURNING ''::text" || got[4] != c.want {
			t.Errorf("sent %v, want %d and %s", got, c.keysAt, c.want)
		}
		var inBinary, inText []*string
		types := pgtype.NewMap()
		params := OnShard(nil, c.keys...).Params("-- test", c.args)
		err = errors.Join(types.Scan(pgtype.TextArrayOID, pgx.BinaryFormatCode, params[4], &inBinary), types.Scan(pgtype.TextArrayOID, pgx.TextFormatCode, []byte(c.want), &inText))
		if err != nil || !reflect.DeepEqual(inBinary, inText) {
			t.Errorf("in binary %q, in text %q, %v", params[4], c.want, err)
		}
	}
}
