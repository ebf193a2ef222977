package statement

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/must"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// TestBinaryMisread: a row that does not have the columns' types is an error, decides
// nothing and leaves the connection in order.
func TestBinaryMisread(t *testing.T) {
	t.Parallel()
	table := Of(algorithm.SlidingWindowCounter)
	r := drawn{rand.New(rand.NewPCG(3, 3))}
	var rows [][]any
	server := &fakeServer{answer: func(*sent) ([][]any, error) { return rows, nil }}
	c := conn(t, server.pool(t))
	batch := r.rows(algorithm.SlidingWindowCounter, 3)
	for _, bad := range []any{nil, []byte{}, []byte("1234567"), []byte("123456789")} {
		for i, col := range table.takeMany().columns {
			if col.oid == pgtype.TextOID && bad != nil {
				continue
			}
			rows = nil
			for _, row := range batch {
				row.Outcome = store.Outcome{}
				rows = append(rows, r.columns(table.takeMany(), row.Query.Policy, row.Query.Key))
			}
			rows[1][i] = bad
			err := table.TakeMany(t.Context(), c, batch, nil)
			if err == nil || !strings.Contains(err.Error(), "column "+col.name) || slices.ContainsFunc(batch, func(r *store.Row) bool { return r.Outcome.Decided }) {
				t.Errorf("column %d as %v: %v, %+v", i, bad, err, outcomes(batch))
			}
		}
		for i := range table.kinds[store.Take]().columns {
			rows = [][]any{r.columns(table.kinds[store.Take](), "", "")}
			rows[0][i] = bad
			if o, err := taken(t.Context(), c, batch[0].Query); err == nil || o.Decided {
				t.Errorf("column %d of a Take as %v: %+v, %v", i, bad, o, err)
			}
		}
	}
	rows = [][]any{r.columns(table.kinds[store.Take](), "", "")[1:]}
	if _, err := taken(t.Context(), c, batch[0].Query); err == nil {
		t.Error("a column is missing")
	}
	rows = nil
	if _, err := taken(t.Context(), c, batch[0].Query); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if err := table.TakeMany(t.Context(), c, batch, nil); err == nil || !strings.Contains(err.Error(), "no row returned") {
		t.Errorf("no rows: %v", err)
	}
	rows = [][]any{r.columns(table.kinds[store.Take](), "", "")}
	if o, err := taken(t.Context(), c, batch[0].Query); err != nil || !o.Decided {
		t.Errorf("afterwards %+v, %v", o, err)
	}
	q := r.query(algorithm.FixedWindow, "k")
	q.Calendar, rows = new(algorithm.Calendar), nil
	if _, err := taken(t.Context(), c, q); err != exec.ErrOtherPeriod {
		t.Errorf("a calendar without a row: %v", err)
	}
	calendar := Of(algorithm.FixedWindow).calendar[store.Take]()
	rows = [][]any{r.columns(calendar, "", "")}
	rows[0][slices.IndexFunc(calendar.columns, func(c column) bool { return c.name == "Granted" })] = float64(otherPeriod)
	if _, err := taken(t.Context(), c, q); err != exec.ErrOtherPeriod {
		t.Errorf("a calendar in another period: %v", err)
	}
}

// TestBinaryFailed: rows that were read before an error are not decided.
func TestBinaryFailed(t *testing.T) {
	t.Parallel()
	table := Of(algorithm.TokenBucket)
	r := drawn{rand.New(rand.NewPCG(4, 4))}
	batch := r.rows(algorithm.TokenBucket, 3)
	server := &fakeServer{answer: func(*sent) ([][]any, error) {
		return [][]any{r.columns(table.takeMany(), batch[0].Query.Policy, batch[0].Query.Key)}, failure("55P03 locked")
	}}
	c := conn(t, server.pool(t))
	for range 2 {
		err := table.TakeMany(t.Context(), c, batch, nil)
		if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) || answer.Code != "55P03" || batch[0].Outcome.Decided {
			t.Errorf("%v, %+v", err, batch[0].Outcome)
		}
	}
	if _, closed := server.take(); len(closed) != 0 {
		t.Errorf("closed %q after a lock timeout", closed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := table.TakeMany(ctx, c, batch, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestBinaryLost: a statement that is missing or stale on the server is sent once more,
// counted once, and prepared again if prepared statements are still used.
func TestBinaryLost(t *testing.T) {
	t.Parallel()
	table := Of(algorithm.LeakyBucket)
	for _, c := range []struct {
		code    failure
		parsing bool // the error comes when it is prepared
		off     bool // prepared statements are given up
	}{
		{code: "26000 prepared statement does not exist", off: true},
		{code: "08P01 bind message supplies 2 parameters", off: true},
		{code: "0A000 cached plan must not change result type"},
		{code: "42P05 prepared statement already exists", parsing: true, off: true},
	} {
		for _, many := range []bool{false, true} {
			r := drawn{rand.New(rand.NewPCG(5, 5))}
			batch := r.rows(algorithm.LeakyBucket, 5)
			server, executed, warned := &fakeServer{}, 0, 0
			fails := func() error {
				if executed == 1 { // the first was fine
					return c.code
				}
				return nil
			}
			server.answer = func(s *sent) (rows [][]any, err error) {
				if s.inBinaryForm() && !c.parsing {
					err = fails()
				}
				if executed++; err != nil {
					return nil, err
				}
				if s.sql == table.kinds[store.Take]().text {
					return [][]any{r.columns(table.kinds[store.Take](), "", "")}, nil
				}
				for _, row := range batch {
					rows = append(rows, r.columns(table.takeMany(), row.Query.Policy, row.Query.Key))
				}
				return rows, nil
			}
			pool := server.pool(t)
			connections := exec.PGX(pool, 0)
			runner := exec.NewPool(connections, exec.NewCache(func(error) { warned++ }))
			call := func() error {
				return runner.Run(t.Context(), exec.Statement, func(tx db.DBTX) error {
					if many {
						return table.TakeMany(t.Context(), tx, batch, nil)
					}
					o, err := taken(t.Context(), tx, batch[0].Query)
					batch[0].Outcome = o
					return err
				})
			}
			must.Succeed(t, call())
			if c.parsing {
				pool.Reset() // the next connection prepares it again
				server.refuse = func(sql string) error {
					server.refuse = nil
					return c.code
				}
			}
			for range 2 {
				batch[0].Outcome = store.Outcome{}
				if err := call(); err != nil || !batch[0].Outcome.Decided {
					t.Fatalf("%s: %v, %+v", c.code, err, batch[0].Outcome)
				}
			}
			log, closed := server.take()
			var ways []bool
			for _, s := range log {
				ways = append(ways, s.inBinaryForm())
			}
			want := []bool{true, true, false, !c.off}
			if c.parsing {
				want = []bool{true, false, false}
			}
			if !slices.Equal(ways, want) || (warned == 1) != c.off || slices.Contains(closed, log[0].name) == c.off {
				t.Errorf("%s: sent in binary: %v, want %v; %d warnings; closed %q", c.code, ways, want, warned, closed)
			}
		}
	}
}

// TestAsLocked: under a lock_timeout of ours a cancel without another reason is a locked row, so
// that no policy fails open by it.
func TestAsLocked(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx           context.Context
		wait          time.Duration
		code, message string
		locked        bool
	}{
		{ended, 1, "55P03", "lock timeout", true},
		{t.Context(), 1, "57014", "user request", true},
		{t.Context(), 0, "57014", "user request", false},
		{ended, 1, "57014", "user request", false},
		{t.Context(), 1, "57014", "statement timeout", false},
		{t.Context(), 1, "40001", "could not serialize access", false},
	} {
		err := error(&pgconn.PgError{Code: c.code, Message: c.message})
		if got := AsLocked(c.ctx, c.wait, err); (got == store.ErrLocked) != c.locked || !c.locked && got != err {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
