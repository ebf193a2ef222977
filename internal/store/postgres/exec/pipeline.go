package exec

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/sending"
)

// Pipeline makes n calls as one transaction in one round trip. Each call runs twice, first
// to record its statement and then to read its answer; until then it must do nothing else.
// It has one statement: further ones fail with store.ErrAlone. If a statement fails, the
// server rolls all back, and failed is the index of its call. If failed is negative, an
// error leaves open whether they were committed, except ErrNoPipeline.
func Pipeline(ctx context.Context, tx db.DBTX, n int, call func(i int, tx db.DBTX)) (failed int, err error) {
	many, ok := tx.(batcher)
	if !ok {
		return -1, ErrNoPipeline
	}
	var batch pgx.Batch
	sends := make([]bool, n)
	var o once
	for i := range n {
		o = once{DBTX: recorder{&batch}}
		call(i, &o)
		sends[i] = o.used
	}
	if batch.Len() == 0 {
		return -1, nil
	}
	results := many.SendBatch(ctx, &batch)
	failed = -1
	for i := range n {
		if !sends[i] {
			continue // it has its answer
		}
		o = once{DBTX: player{results}}
		if call(i, &o); o.err != nil {
			failed = i
			break
		}
		sending.Answered(ctx)
	}
	if err = results.Close(); err == nil {
		return -1, o.err // all was committed, but the answers cannot be read
	}
	if !rolledBack(err) {
		failed = -1
	}
	return failed, err
}

// rolledBack reports whether the server ended a transaction with err: it says that the
// session goes on. A lost connection and a session that was ended leave open whether a
// commit was on its way. The severity that is not translated comes from PostgreSQL only:
// a pooler whose server broke sends none.
func rolledBack(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.SeverityUnlocalized == "ERROR"
}

// once is a DBTX for one statement.
type once struct {
	db.DBTX
	used bool
	err  error // of the statement
}

func (o *once) again() bool {
	was := o.used
	o.used = true
	return was
}

func (o *once) note(err error) error {
	if err != nil && err != pgx.ErrNoRows {
		o.err = err
	}
	return err
}

func (o *once) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if o.again() {
		return pgconn.CommandTag{}, store.ErrAlone
	}
	tag, err := o.DBTX.Exec(ctx, sql, args...)
	return tag, o.note(err)
}

// Query is for statements that do not share a transaction.
func (o *once) Query(context.Context, string, ...any) (pgx.Rows, error) { return nil, store.ErrAlone }

func (o *once) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if o.again() {
		return noRow{store.ErrAlone}
	}
	return onceRow{o, o.DBTX.QueryRow(ctx, sql, args...)}
}

type onceRow struct {
	*once
	pgx.Row
}

func (r onceRow) Scan(into ...any) error { return r.note(r.Row.Scan(into...)) }

// Call sends one statement and reads its answer.
type Call func(db.DBTX) error

// batcher is a DBTX that sends many statements at once.
type batcher interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// Together makes the calls in order, up to the first that fails. If tx can pipeline, they
// take one round trip: each call runs twice, first to record its statement and then to
// read its answer. So a call must do nothing else before it has its answer.
func Together(ctx context.Context, tx db.DBTX, calls []Call) error {
	many, ok := tx.(batcher)
	if !ok {
		for _, c := range calls {
			if err := c(tx); err != nil {
				return err
			}
			sending.Answered(ctx)
		}
		return nil
	}
	var batch pgx.Batch
	for _, c := range calls {
		if err := c(recorder{&batch}); err != errRecorded {
			return err
		}
	}
	results := many.SendBatch(ctx, &batch)
	for _, c := range calls {
		if err := c(player{results}); err != nil {
			_ = results.Close() // the first error is the one to report
			return err
		}
		sending.Answered(ctx)
	}
	return results.Close()
}

// recorder is a DBTX that only records statements.
type recorder struct{ *pgx.Batch }

func (r recorder) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	r.Queue(sql, args...)
	return pgconn.CommandTag{}, errRecorded
}

func (r recorder) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	r.Queue(sql, args...)
	return nil, errRecorded
}

func (r recorder) QueryRow(_ context.Context, sql string, args ...any) pgx.Row {
	r.Queue(sql, args...)
	return noRow{errRecorded}
}

// Text returns the text of the statement that f sends. It sends nothing.
func Text(f func(db.DBTX)) string {
	var sent pgx.Batch
	f(recorder{&sent})
	return sent.QueuedQueries[0].SQL
}

// player is a DBTX that returns the answers to recorded statements, in their order.
type player struct{ pgx.BatchResults }

func (p player) Exec(context.Context, string, ...any) (pgconn.CommandTag, error) {
	return p.BatchResults.Exec()
}

func (p player) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return p.BatchResults.Query()
}

func (p player) QueryRow(context.Context, string, ...any) pgx.Row {
	return p.BatchResults.QueryRow()
}

// command returns the call of a statement without parameters or answer.
func command(ctx context.Context, sql string) Call {
	return func(tx db.DBTX) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
}

// AtOnce makes the calls in one transaction and one round trip, on a connection that
// Runner.Do lends. Statements of one pipeline are one transaction, even without a BEGIN: if
// one fails, the server skips the others and undoes all.
func AtOnce(ctx context.Context, tx db.DBTX, calls []Call) error {
	_, pipelines := tx.(batcher)
	_, begins := tx.(poolTx) // a pipeline has room for its BEGIN
	switch {
	case len(calls) == 1 && !begins:
		return calls[0](tx)
	case !pipelines:
		return ErrOneByOne
	}
	return Together(ctx, tx, calls)
}
