package postgres

import (
	"context"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// takeAtOnce takes all in one round trip, by statements that fail unless all are granted. It
// reports whether it did. If not, nothing has changed.
func (p Store) takeAtOnce(ctx context.Context, groups []*store.Group) (taken bool, err error) {
	calls := p.takeAlls(ctx, groups)
	if len(calls) == 0 {
		return false, nil
	}
	err = p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		return statement.AsLocked(groups[0].LockWait, exec.AtOnce(ctx, tx, calls))
	})
	if exec.IsNotAll(err) || err == exec.ErrOneByOne {
		return false, nil
	}
	return err == nil, err
}

// takeAlls returns a TakeAll for each table. It returns none if that is no way for the
// groups: a queue with less room than its capacity, or several tables and no pipeline.
func (p Store) takeAlls(ctx context.Context, groups []*store.Group) (calls []exec.Call) {
	for len(groups) > 0 {
		n := 0
		for n < len(groups) && groups[n].Algorithm == groups[0].Algorithm {
			if groups[n].Hurried() {
				return nil
			}
			n++
		}
		calls = append(calls, p.takeRows(ctx, groups[:n], 1, (*statement.Table).TakeAllLater))
		groups = groups[n:]
	}
	if len(calls) > 1 && !p.Pipelines() {
		return nil
	}
	return calls
}
