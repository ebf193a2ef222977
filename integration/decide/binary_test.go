package decide

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
	"github.com/pglimit/pglimit/limiter"
)

var numbered = regexp.MustCompile(`\$\d+`)

// TestBinaryFits: the server describes the statements that are sent in binary with the
// parameters that are written and the columns that are read.
func TestBinaryFits(t *testing.T) {
	t.Parallel()
	conn := testworld.ConnectOnce(t, testworld.NewDatabase(t))
	statements := statement.Binaries()
	if len(statements) != 6*12+9+2+5*5+7 { // of each algorithm, of a queue, of a calendar, of marks, and of ledgers
		t.Errorf("%d statements", len(statements))
	}
	for b, columns := range statements {
		name, _, _ := strings.Cut(b.Text(), "\n")
		described, err := conn.Prepare(t.Context(), b.Name(), b.Text())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !b.Fits(described) {
			t.Errorf("%s: parameters %v, columns %+v", name, described.ParamOIDs, described.Fields)
		}
		for i, f := range described.Fields {
			if field := strings.ReplaceAll(f.Name, "_", ""); !strings.EqualFold(field, columns[i]) {
				t.Errorf("%s: column %s is read as %s", name, f.Name, columns[i])
			}
		}
		used := map[string]bool{}
		for _, n := range numbered.FindAllString(b.Text(), -1) {
			used[n] = true
		}
		if len(used) != len(described.ParamOIDs) {
			t.Errorf("%s: %d parameters in its text, %d for the server", name, len(used), len(described.ParamOIDs))
		}
	}
}

// prepared returns how many of the connection's prepared statements are sent in binary.
func prepared(t *testing.T, pool *pgxpool.Pool) int64 {
	t.Helper()
	return testworld.Value[int64](t, pool, `SELECT count(*) FROM pg_prepared_statements WHERE starts_with(name, 'pglimit_')`)
}

// TestBinaryInUse: a pool with the default settings sends decisions in binary, also those
// of several keys, and decides as sqlc's functions do.
func TestBinaryInUse(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.OneConnection)
	l := testworld.NewLimiter(t, pool, nil)
	var sent int64
	for _, a := range algorithm.Tables {
		p := limiter.Policy{Name: "p", Algorithm: limiter.Algorithm(a), Limit: 10, Period: 1000 * time.Hour}
		r := testworld.Must(t)(l.AllowN(t.Context(), p, "key", 3))
		inTx := testworld.Must(t)(testworld.InTxOf(t, pool, l, func(tx *limiter.Tx) (limiter.Result, error) { return tx.AllowN(t.Context(), p, "key", 4) }))
		if !r.Allowed || !testworld.Near(r.Level, 3) || !testworld.Near(inTx.Level, 7) {
			t.Errorf("%s: %+v, then in a transaction %+v", a, r, inTx)
		}
		if sent++; prepared(t, pool) != sent {
			t.Errorf("%s: a decision was not sent in binary", a)
		}

		var rows []*store.Row
		for _, key := range []string{"a", "b", "c"} {
			q := &store.Query{Algorithm: a, Policy: "p", Key: key, Cost: 2, Unit: 2, Room: 10}
			q.Rules = algorithm.Rules{Burst: 10, Capacity: 10, Leak: 1e-9, Tick: 1, Period: 1e12, Lifetime: 1e12}
			rows = append(rows, &store.Row{Query: q, Count: 2}) // all equal, so that each array has one element
		}
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		err = statement.Of(a).TakeMany(t.Context(), conn, rows, nil)
		conn.Release()
		if err != nil {
			t.Fatalf("%s: %v", a, err)
		}
		for i, r := range rows {
			if o := r.Outcome; o.Granted != 2 || !testworld.Near(o.View.Level(&r.Query.Rules, o.UpdatedAt), 4) {
				t.Errorf("%s: row %d: %+v %+v", a, i, o, o.View)
			}
		}
		if sent++; prepared(t, pool) != sent {
			t.Errorf("%s: decisions of several keys were not sent in binary", a)
		}

		// An AllowAll of keys that had room at the last one.
		for range 2 {
			must.OK(l.AllowAll(t.Context(), p.Request("x", 1), p.Request("y", 1)))(t)
		}
		if sent++; prepared(t, pool) != sent {
			t.Errorf("%s: a request of several keys was not sent in binary", a)
		}

		// A Reserve, a Usage, a Charge, a Refund and a Settle.
		must.OK(l.Usage(t.Context(), p, "key"))(t)
		testworld.Must(t)(l.Charge(t.Context(), p, "key", 1))
		sent += 2
		if a != algorithm.LeakyBucketQueue {
			reserved := must.OK(l.Reserve(t.Context(), p.Request("other", 5), time.Minute))(t)
			settled := testworld.Must(t)(l.Settle(t.Context(), reserved.ID, 2))
			back := testworld.Must(t)(l.Refund(t.Context(), p, "key", 1))
			if !testworld.Near(settled.Level, 2) || !testworld.Near(back.Granted, 1) {
				t.Errorf("%s: settled %+v, refunded %+v", a, settled, back)
			}
			sent += 3
		}
		if n := prepared(t, pool); n != sent {
			t.Errorf("%s: %d statements were sent in binary, want %d", a, n, sent)
		}
	}
}

// TestBinaryColumnType: each decision counts once, and is read as it is, if a column's
// type changes under prepared statements.
func TestBinaryColumnType(t *testing.T) {
	t.Parallel()
	pool := testworld.Connect(t, testworld.NewDatabase(t), testworld.OneConnection)
	l := testworld.NewLimiter(t, pool, nil)
	p := limiter.Policy{Name: "p", Algorithm: limiter.TokenBucket, Limit: 100, Period: 1000 * time.Hour}
	want := 0.0
	for _, typ := range []string{"float8", "real", "float8"} {
		testworld.Exec(t, pool, "ALTER TABLE pglimit_token_bucket ALTER COLUMN granted TYPE "+typ)
		for range 3 {
			want += 7
			if r := testworld.Must(t)(l.AllowN(t.Context(), p, "key", 7)); !r.Allowed || !testworld.Near(r.Level, want) {
				t.Errorf("%s: %+v, want level %v", typ, r, want)
			}
		}
	}
	if prepared(t, pool) != 1 {
		t.Error("the last decision was not sent in binary")
	}
}
