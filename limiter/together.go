package limiter

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/db"
)

// call sends one statement and reads its answer.
type call func(db.DBTX) error

// batcher is a DBTX that sends many statements at once.
type batcher interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// together makes the calls in their order, up to the first that fails: in one
// round trip where tx can. Each call runs twice then, once to be recorded and
// once with its answer, and must do nothing else before it has that.
func together(ctx context.Context, tx db.DBTX, calls []call) error {
	many, ok := tx.(batcher)
	if !ok {
		for _, c := range calls {
			if err := c(tx); err != nil {
				return err
			}
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
	}
	return results.Close()
}

// errRecorded is what a call gets instead of an answer while it is recorded.
var errRecorded = errors.New("pglimit: recorded")

// recorder is a DBTX that only notes what is to be sent.
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

// noRow is a row that is an error.
type noRow struct{ error }

func (n noRow) Scan(...any) error { return n.error }

// player is a DBTX that has the answers to what was recorded, in that order.
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

// command is the call of a statement without parameters or answer.
func command(ctx context.Context, sql string) call {
	return func(tx db.DBTX) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
}
