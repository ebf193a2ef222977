package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// Pipelines reports whether a connection can send several statements as one transaction:
// database/sql has no pipelines, and pgx none without prepared statements.
func (p Store) Pipelines() bool { return p.shares != nil && p.shares() }

// Pipeline carries ops out as one transaction in one round trip and returns their errors.
// Ops that lock rows are in lock order, and have one Commit and the LockWait wait. Each runs
// twice, first to record its statement and then to read its answer. PostgreSQL makes one
// transaction of the statements between two Syncs. A statement sees what those before it
// have written. An op that needs another one after a statement that changed nothing has the
// error store.ErrAlone.
//
// After a *store.PartError nothing was decided, and after store.ErrAlone nothing was sent.
// After any other error the ops may have been carried out.
func (p Store) Pipeline(ctx context.Context, wait time.Duration, ops []*store.Op) ([]error, error) {
	errs := make([]error, len(ops))
	failed := -1
	err := p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) (err error) {
		failed, err = exec.Pipeline(ctx, tx, len(ops), func(i int, tx db.DBTX) {
			errs[i] = Store{runner: exec.InTx(tx), ahead: p.ahead}.Do(ctx, ops[i])
		})
		return statement.AsLocked(wait, err)
	})
	switch {
	case err == nil:
		return errs, nil
	case errors.Is(err, exec.ErrNoPipeline): // at last; a try before was rolled back
		return nil, store.ErrAlone
	case failed >= 0:
		return nil, &store.PartError{Index: failed, Err: exec.Translate(err, false)}
	}
	return nil, exec.Translate(err, false)
}
