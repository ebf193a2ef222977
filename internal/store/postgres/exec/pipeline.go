package exec

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
)

// ErrNoPipeline: the connection cannot send many statements at once. Nothing was sent.
var ErrNoPipeline = errors.New("pglimit: no pipeline")

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
