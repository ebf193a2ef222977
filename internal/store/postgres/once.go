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
func (p Store) takeAtOnce(ctx context.Context, joints []*store.Joint) (taken bool, err error) {
	calls := p.takeAlls(ctx, joints)
	if len(calls) == 0 {
		return false, nil
	}
	err = p.runner.Do(ctx, func(tx db.DBTX) error {
		return asLocked(joints[0].LockWait, exec.AtOnce(ctx, tx, calls))
	})
	if exec.IsNotAll(err) || err == exec.ErrOneByOne {
		return false, nil
	}
	return err == nil, err
}

// takeAlls returns a TakeAll for each table. It returns none if that is no way for the
// joints: a queue with less room than its capacity, or several tables and no pipeline.
func (p Store) takeAlls(ctx context.Context, joints []*store.Joint) (calls []exec.Call) {
	for len(joints) > 0 {
		n := 0
		for n < len(joints) && joints[n].Algorithm == joints[0].Algorithm {
			if joints[n].Hurried() {
				return nil
			}
			n++
		}
		calls = append(calls, p.takeRows(ctx, joints[:n], 1, (*statement.Table).TakeAllLater))
		joints = joints[n:]
	}
	if len(calls) > 1 && !p.Pipelines() {
		return nil
	}
	return calls
}
