package exec

import (
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestOnShard: a statement goes to the first of its keys, says which parameter lists them,
// and has its parameters as PostgreSQL's text of an array.
func TestOnShard(t *testing.T) {
	Distribute("-- test", "DELETE -- test\n RETURNING ''::text", "c0 text")
	now, null := int64(-7), (*int64)(nil)
	hostile := []string{`a"b\,{}`, "NULL", ""}
	for _, c := range []struct {
		keys   []string
		args   []any
		keysAt int
		want   string
	}{
		{[]string{"k"}, nil, 0, `{}`},
		{[]string{"k"}, []any{"p", "k", 0.1, int64(3), true, &now, null, nil, (*string)(nil)}, 0, `{"p","k",0.1,3,true,-7,NULL,NULL,NULL}`},
		{hostile, []any{[]float64{1e300, math.Inf(1)}, hostile, []int64{}, hostile}, 2,
			`{"{1e+300,+Inf}","{\"a\\\"b\\\\,{}\",\"NULL\",\"\"}","{}","{\"a\\\"b\\\\,{}\",\"NULL\",\"\"}"}`},
	} {
		var sent pgx.Batch
		_, err := OnShard(recorder{&sent}, c.keys...).Query(t.Context(), "-- test", c.args...)
		if err != errRecorded {
			t.Fatal(err)
		}
		got := sent.QueuedQueries[0].Arguments
		if got[0] != c.keys[0] || got[1] != c.keysAt || got[3] != "DELETE RETURNING ''::text" || got[4] != c.want {
			t.Errorf("sent %v, want %d and %s", got, c.keysAt, c.want)
		}
	}
}
