package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// Pipelines reports whether a connection can send several statements as one transaction:
// database/sql has no pipelines, and pgx none without prepared statements.
func (p Store) Pipelines() bool { return p.shares != nil && p.shares() }

// Pipeline is store.Pipeliner's. PostgreSQL makes one transaction of the statements between
// two Syncs. A statement sees what those before it have written.
func (p Store) Pipeline(ctx context.Context, wait time.Duration, calls []store.Part) ([]error, error) {
	errs := make([]error, len(calls))
	failed := -1
	err := p.runner.Do(ctx, func(tx db.DBTX) (err error) {
		failed, err = exec.Pipeline(ctx, tx, len(calls), func(i int, tx db.DBTX) {
			errs[i] = calls[i](Store{runner: exec.InTx(tx), ahead: p.ahead})
		})
		return asLocked(wait, err)
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
