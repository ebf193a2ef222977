package exec

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// wire is a connection with a pipeline. Each statement has the error of its text in fails.
type wire struct {
	db.DBTX
	fails map[string]error
	ends  error // of the commit
	sent  []string
}

func (w *wire) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		w.sent = append(w.sent, q.SQL)
	}
	return &wireResults{wire: w}
}

// wireResults has the answers to all that was sent, up to the first error.
type wireResults struct {
	pgx.BatchResults
	*wire
	read int
	err  error
}

func (r *wireResults) answer() error {
	if r.err == nil {
		r.err = r.fails[r.sent[r.read]]
		r.read++
	}
	return r.err
}

func (r *wireResults) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, r.answer() }
func (r *wireResults) QueryRow() pgx.Row                { return noRow{r.answer()} }

func (r *wireResults) Close() error {
	for r.err == nil && r.read < len(r.sent) {
		_ = r.answer()
	}
	if r.err == nil {
		return r.ends
	}
	return r.err
}

// TestPipeline: what a pipeline tells of its statements.
func TestPipeline(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "22021", SeverityUnlocalized: "ERROR"}
	for _, c := range []struct {
		name   string
		fails  map[string]error
		ends   error
		failed int
		err    error
	}{
		{"all succeed", nil, nil, -1, nil},
		{"the server refuses one", map[string]error{"2": refused}, nil, 2, refused},
		{"the server ends the session", map[string]error{"2": &pgconn.PgError{Code: "57P01", SeverityUnlocalized: "FATAL"}}, nil, -1, errors.ErrUnsupported},
		{"a pooler says that the server is gone", map[string]error{"2": &pgconn.PgError{Code: "08P01", Severity: "ERROR"}}, nil, -1, errors.ErrUnsupported},
		{"the connection breaks", map[string]error{"2": io.ErrUnexpectedEOF}, nil, -1, io.ErrUnexpectedEOF},
		{"the commit fails", nil, &pgconn.PgError{Code: "40001", SeverityUnlocalized: "ERROR"}, -1, errors.ErrUnsupported},
	} {
		w := &wire{fails: c.fails, ends: c.ends}
		var answers []error
		failed, err := Pipeline(t.Context(), w, 4, func(i int, tx db.DBTX) {
			var err error
			if i%2 == 0 {
				err = tx.QueryRow(t.Context(), fmt.Sprint(i)).Scan()
			} else {
				_, err = tx.Exec(t.Context(), fmt.Sprint(i))
			}
			answers = append(answers, err)
		})
		if failed != c.failed || (err == nil) != (c.err == nil) || c.err != errors.ErrUnsupported && !errors.Is(err, c.err) {
			t.Errorf("%s: %d, %v", c.name, failed, err)
		}
		if !slices.Equal(w.sent, []string{"0", "1", "2", "3"}) || !errors.Is(errors.Join(answers[:4]...), errRecorded) || errors.Join(answers[4:6]...) != nil {
			t.Errorf("%s: sent %q, answers %v", c.name, w.sent, answers)
		}
	}
}

// TestPipelineOfOneStatementEach: further statements of a call are not sent, and an answer
// without a row is one.
func TestPipelineOfOneStatementEach(t *testing.T) {
	t.Parallel()
	w := new(wire)
	got := make([]error, 4)
	failed, err := Pipeline(t.Context(), w, 4, func(i int, tx db.DBTX) {
		switch i {
		case 0:
			if got[i] = tx.QueryRow(t.Context(), "a").Scan(); got[i] == nil {
				_, got[i] = tx.Exec(t.Context(), "more")
			}
		case 1: // sends nothing
		case 2:
			if _, got[i] = tx.Exec(t.Context(), "b"); got[i] == nil {
				got[i] = tx.QueryRow(t.Context(), "more").Scan()
			}
		case 3:
			_, got[i] = tx.Query(t.Context(), "rows")
		}
	})
	want := []error{store.ErrAlone, nil, store.ErrAlone, store.ErrAlone}
	if failed != -1 || err != nil || !slices.Equal(got, want) || !slices.Equal(w.sent, []string{"a", "b"}) {
		t.Errorf("%d, %v: %v; sent %q", failed, err, got, w.sent)
	}
	w.sent = nil
	failed, err = Pipeline(t.Context(), &noRows{w}, 1, func(_ int, tx db.DBTX) { got[0] = tx.QueryRow(t.Context(), "none").Scan() })
	if failed != -1 || err != nil || got[0] != pgx.ErrNoRows {
		t.Errorf("%d, %v: %v", failed, err, got[0])
	}
}

// TestAnswersOfParts: each answer within a transaction counts, whether or not it is pipelined.
func TestAnswersOfParts(t *testing.T) {
	t.Parallel()
	w := &wire{fails: map[string]error{"2": io.ErrUnexpectedEOF}}
	var calls []Call
	for i := range 4 {
		calls = append(calls, func(tx db.DBTX) error { return tx.QueryRow(t.Context(), fmt.Sprint(i)).Scan() })
	}
	for name, run := range map[string]func(context.Context){
		"Pipeline": func(ctx context.Context) {
			_, _ = Pipeline(ctx, w, 4, func(i int, tx db.DBTX) { _ = calls[i](tx) })
		},
		"Together":   func(ctx context.Context) { _ = Together(ctx, w, calls) },
		"one by one": func(ctx context.Context) { _ = Together(ctx, struct{ db.DBTX }{alone{w}}, calls) },
	} {
		w.sent = nil
		c := &sending.Context{Answers: new(atomic.Int64)}
		if run(c); c.Answers.Load() != 2 {
			t.Errorf("%s: %d answers, want 2", name, c.Answers.Load())
		}
	}
}

// alone is a wire without a pipeline.
type alone struct{ *wire }

func (a alone) QueryRow(_ context.Context, sql string, _ ...any) pgx.Row { return noRow{a.fails[sql]} }

// noRows is a wire whose statements return no row, which is no error of theirs.
type noRows struct{ *wire }

func (n *noRows) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return emptyResults{} }

type emptyResults struct{ pgx.BatchResults }

func (emptyResults) QueryRow() pgx.Row { return noRow{pgx.ErrNoRows} }
func (emptyResults) Close() error      { return nil }

// TestNoPipeline: over a connection that sends one statement at a time nothing is sent. The
// breaker does not count that.
func TestNoPipeline(t *testing.T) {
	t.Parallel()
	b := NewBreaker(1, 1e9, func() int64 { return 0 })
	for range 3 {
		_, err := Pipeline(t.Context(), uncached{new(wire)}, 2, func(int, db.DBTX) { t.Error("recorded") })
		if b.try(t, err) != ErrNoPipeline || b.Answers() != 0 {
			t.Errorf("%v, %d answers", err, b.Answers())
		}
	}
}

// unread is a connection whose answers cannot be read, though all was committed.
type unread struct{ *wire }

func (u *unread) SendBatch(context.Context, *pgx.Batch) pgx.BatchResults { return unreadResults{} }

type unreadResults struct{ pgx.BatchResults }

var errUnread = errors.New("a column of another type")

func (unreadResults) QueryRow() pgx.Row { return noRow{errUnread} }
func (unreadResults) Close() error      { return nil }

// TestPipelineUnread: an answer that cannot be read leaves open what was decided for all.
func TestPipelineUnread(t *testing.T) {
	t.Parallel()
	failed, err := Pipeline(t.Context(), new(unread), 2, func(_ int, tx db.DBTX) {
		var n int
		_ = tx.QueryRow(t.Context(), "a").Scan(&n)
	})
	if failed >= 0 || !errors.Is(err, errUnread) {
		t.Errorf("failed %d, %v", failed, err)
	}
}
