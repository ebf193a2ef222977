package statement

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// traced makes a pool's statements go through pgx: the way of sqlc.
func traced(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer{} }

type tracer struct{}

func (tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// inBinaryForm reports whether a statement was sent in binary.
func (s *sent) inBinaryForm() bool { return strings.HasPrefix(s.name, "pglimit_") }

// drawn draws queries and values of columns.
type drawn struct{ *rand.Rand }

// query returns a query whose numbers differ from each other.
func (r drawn) query(a algorithm.Name, key string) *store.Query {
	q := &store.Query{Algorithm: a, Policy: fmt.Sprint("p", r.IntN(3)), Key: key, LockWait: 10 * time.Millisecond, Commit: store.Durable}
	q.Cost, q.Count, q.Unit, q.Room = r.float(), r.float(), r.float(), r.float()
	q.Rules = algorithm.Rules{
		Capacity: r.float(), Burst: r.float(), Leak: r.float(), Tick: r.time(), Period: r.time(),
		Aligned: r.IntN(2) == 0, BlockFor: r.time(), Lifetime: r.time(),
	}
	if a == algorithm.FixedWindow && r.IntN(2) == 0 {
		q.Calendar = new(algorithm.Calendar)
		q.Edges = store.Edges{From: r.time(), Turn: r.time(), Until: r.time()}
	}
	return q
}

func (r drawn) float() float64 { return math.Ldexp(r.Float64(), r.IntN(60)-10) }

func (r drawn) time() int64 { return 1 + r.Int64N(4e15) }

// rows returns n rows, each of a different key.
func (r drawn) rows(a algorithm.Name, n int) (rows []*store.Row) {
	for i := range n {
		key := strings.Repeat("k", r.IntN(4)) + fmt.Sprint(i) + strings.Repeat("é", r.IntN(2))
		rows = append(rows, &store.Row{Query: r.query(a, key), Count: 1 + r.Int64N(5)})
	}
	return rows
}

// columns returns a row of a plan.
func (r drawn) columns(p *statement, policy, key string) (values []any) {
	for _, c := range p.columns {
		switch c.oid {
		case pgtype.Float8OID:
			values = append(values, r.float()-1)
		case pgtype.Int8OID:
			values = append(values, r.time())
		case pgtype.BoolOID:
			values = append(values, r.IntN(2) == 0)
		case pgtype.TextOID:
			switch c.name {
			case "Policy":
				values = append(values, policy)
			case "Lots":
				values = append(values, `[{"number": "9007199254740993", "left": 0.1, "end": "9223372036854775807", "priority": -1, "source": "é"}]`)
			default:
				values = append(values, key)
			}
		}
	}
	return values
}

// outcomes returns the rows' outcomes in a form that can be compared.
func outcomes(rows []*store.Row) (all []store.Outcome) {
	for _, r := range rows {
		all = append(all, plain(r.Outcome))
	}
	return all
}

func plain(o store.Outcome) store.Outcome {
	if l, ok := o.View.(*algorithm.LogView); ok {
		o.View = *l
	}
	return o
}

// TestBinaryAsSqlc: each algorithm's statements carry the same bytes and lead to the same
// outcomes as through sqlc's functions. Batches of different sizes use the same buffers,
// and their rows come back in any order, with one that was not sent.
func TestBinaryAsSqlc(t *testing.T) {
	t.Parallel()
	for name := range tables {
		table := Of(name)
		t.Run(string(name), func(t *testing.T) {
			t.Parallel()
			r := drawn{rand.New(rand.NewPCG(1, uint64(len(name))))}
			var rows [][]any
			server := &fakeServer{answer: func(*sent) ([][]any, error) { return rows, nil }}
			direct, through := conn(t, server.pool(t)), conn(t, server.pool(t, traced))
			same := func(what string) {
				t.Helper()
				log, _ := server.take()
				if len(log) != 2 || !log[0].inBinaryForm() || log[1].inBinaryForm() || log[0].sql != log[1].sql {
					t.Fatalf("%s: sent %+v", what, log)
				}
				for i, p := range log[1].params {
					got := log[0].params[i]
					if !reflect.DeepEqual(got, p) {
						t.Fatalf("%s: sent %x as $%d, sqlc %x", what, got, i+1, p)
					}
				}
			}
			for round := range 60 {
				now := new(int64)
				*now = r.time()
				if round%2 == 0 {
					now = nil
				}

				q := r.query(name, "key")
				if round%3 == 0 {
					q.Commit, q.LockWait = store.AsSet, 0
				}
				q.Now = now
				for kind, usual := range table.kinds {
					if usual == nil || usual().binary == nil {
						continue
					}
					of := usual()
					if q.Calendar != nil && kind < len(table.calendar) && table.calendar[kind] != nil {
						of = table.calendar[kind]()
					}
					rows = [][]any{r.columns(of, q.Policy, q.Key)}
					op := store.Op{Kind: store.Kind(kind), Query: *q, ForUs: r.time(), DeniedAt: r.time(), ID: "id", State: store.Settled}
					op.Units, op.Grant.At, op.Grant.EndsAt = r.float(), r.time(), r.time()
					op.Lot = &store.Granting{Ends: r.time(), Priority: r.Int64N(9) - 4, Source: "é"}
					op.Admission = &store.Admission{ID: "id", State: store.Open, Limit: r.float(), TTL: r.time(), Remember: r.time(), Idempotency: strings.Repeat("i", round%2)}
					got, want := op, op
					err, wanted := Call{t.Context(), &got}.Send(direct), Call{t.Context(), &want}.Send(through)
					got.Outcome, want.Outcome = plain(got.Outcome), plain(want.Outcome)
					if err != nil || wanted != nil || !reflect.DeepEqual(got, want) {
						t.Fatalf("%s: got %+v, %v, want %+v, %v", verbs[kind], got, err, want, wanted)
					}
					same(verbs[kind])
				}

				batch := r.rows(name, []int{100, 1, 9, 2, 40}[round%5])
				if round%4 == 1 { // with equal numbers
					for _, row := range batch {
						of := *batch[0].Query
						of.Key = row.Query.Key
						row.Query, row.Count = &of, 1
					}
				}
				rows = [][]any{r.columns(table.takeMany(), "p0", "never sent")}
				for _, row := range batch {
					rows = append(rows, r.columns(table.takeMany(), row.Query.Policy, row.Query.Key))
				}
				if round%3 != 0 {
					r.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
				}
				again := make([]*store.Row, len(batch))
				for i, row := range batch {
					again[i] = &store.Row{Query: row.Query, Count: row.Count}
				}
				for what, take := range map[string]func(context.Context, db.DBTX, []*store.Row, *int64) error{"TakeMany": table.TakeMany, "TakeAll": table.TakeAll} {
					must.Succeed(t, errors.Join(take(t.Context(), direct, batch, now), take(t.Context(), through, again, now)))
					if got, want := outcomes(batch), outcomes(again); !reflect.DeepEqual(got, want) {
						t.Fatalf("%s of %d rows: got %+v, want %+v", what, len(batch), got, want)
					}
					same(what)
				}
			}
		})
	}
}

// TestBinaryElsewhere: sqlc's functions send what may not be sent in binary.
func TestBinaryElsewhere(t *testing.T) {
	t.Parallel()
	take, many := Of(algorithm.TokenBucket).kinds[store.Take](), Of(algorithm.TokenBucket).takeMany()
	_, otherTypes := oids(take)
	otherTypes = slices.Clone(otherTypes)
	otherTypes[0] = pgtype.Float4OID
	mode := func(m pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
	}
	for name, c := range map[string]struct {
		change func(*pgxpool.Config)
		types  map[string][]uint32
		in     exec.Mode
		binary bool
	}{
		"pool":           {binary: true},
		"tracer":         {change: traced},
		"exec mode":      {change: mode(pgx.QueryExecModeExec)},
		"cache describe": {change: mode(pgx.QueryExecModeCacheDescribe)},
		"transaction":    {in: exec.Transaction},
		"other types":    {types: map[string][]uint32{take.text: otherTypes, many.text: nil}},
	} {
		r := drawn{rand.New(rand.NewPCG(2, 2))}
		batch := r.rows(algorithm.TokenBucket, 3)
		server := &fakeServer{types: c.types}
		server.answer = func(s *sent) (rows [][]any, _ error) {
			if s.sql == take.text {
				return [][]any{r.columns(take, "", "")}, nil
			}
			for _, row := range batch {
				rows = append(rows, r.columns(many, row.Query.Policy, row.Query.Key))
			}
			return rows, nil
		}
		if name == "other types" { // pgx would not read these rows
			server.answer = func(*sent) ([][]any, error) { return nil, failure("42000 not now") }
		}
		if c.change == nil {
			c.change = func(*pgxpool.Config) {}
		}
		runner := exec.NewPool(exec.PGX(server.pool(t, c.change), 0), exec.NewCache(nil))
		for what, f := range map[string]func(db.DBTX) error{
			"Take": func(tx db.DBTX) error {
				_, err := taken(t.Context(), tx, batch[0].Query)
				return err
			},
			"TakeMany": func(tx db.DBTX) error { return Of(algorithm.TokenBucket).TakeMany(t.Context(), tx, batch, nil) },
		} {
			err := runner.Run(t.Context(), c.in, f)
			if log, _ := server.take(); len(log) != 1 || log[0].inBinaryForm() != c.binary || (err != nil) != (c.types != nil) {
				t.Errorf("%s, %s: sent %+v, %v", name, what, log, err)
			}
		}
	}
}

// TestBinaryOneIfEqual: an array has one element if it may and all rows are equal.
func TestBinaryOneIfEqual(t *testing.T) {
	t.Parallel()
	of := func(r *store.Row) int64 { return r.Query.Edges.Turn }
	row := func(turn int64) *store.Row {
		q := &store.Query{Edges: store.Edges{Turn: turn}}
		if turn != 0 {
			q.Calendar = new(algorithm.Calendar)
		}
		return &store.Row{Query: q}
	}
	for _, c := range []struct {
		e     elements
		reach func([]*store.Row) int
		turns []int64
		want  []int64
	}{
		{perRow, allRows, []int64{7, 7, 7}, []int64{7, 7, 7}},
		{oneIfEqual, allRows, []int64{7, 7, 7}, []int64{7}},
		{oneIfEqual, allRows, []int64{7, 7, 8}, []int64{7, 7, 8}},
		{oneIfEqual, allRows, []int64{8, 7, 7}, []int64{8, 7, 7}},
		{oneIfEqual, calendarRows, []int64{7, 7, 0}, []int64{7}},
		{oneIfEqual, calendarRows, []int64{0, 7, 0}, []int64{0, 7}},
		{oneIfEqual, calendarRows, []int64{7, 7}, []int64{7}},
		{oneIfEqual, calendarRows, []int64{0, 0}, []int64{}},
		{perRow, calendarRows, []int64{0, 7, 0}, []int64{0, 7}},
	} {
		w := wires.New().(*wire)
		for _, turn := range c.turns {
			w.rows = append(w.rows, row(turn))
		}
		p := integers(c.e, c.reach, of)
		var set []int64
		p.set(&set, w)
		got := w.encode([]param{p})[0]
		want, err := pgtype.NewMap().Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, c.want, nil)
		if err != nil || !bytes.Equal(got, want) || set == nil || !slices.Equal(set, c.want) {
			t.Errorf("%+v: %x and %v, want %x, %v", c, got, set, want, err)
		}
	}
}

// TestBinaryAllocations: the rows of a batch share allocations.
func TestBinaryAllocations(t *testing.T) {
	const n = 100
	for name := range tables {
		table := Of(name)
		r := drawn{rand.New(rand.NewPCG(6, 6))}
		batch := r.rows(name, n)
		var rows [][][]byte
		for _, row := range batch {
			var values [][]byte
			for _, v := range r.columns(table.takeMany(), row.Query.Policy, row.Query.Key) {
				values = append(values, encoded(v, pgtype.BinaryFormatCode))
			}
			rows = append(rows, values)
		}
		w := wires.New().(*wire)
		allocations := testing.AllocsPerRun(100, func() {
			w.rows, w.query, w.expected, w.view = batch, batch[0].Query, 0, table.view
			w.encode(table.takeMany().params)
			for i, values := range rows {
				must.Succeed(t, w.fields.read(table.takeMany().columns, values))
				w.decide(n - i)
			}
		})
		if allocations > n/together+1 {
			t.Errorf("%s: %v allocations for %d rows", name, allocations, n)
		}
	}
}
