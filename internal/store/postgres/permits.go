package postgres

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// permit takes permits for new rows, or with Permits -1 looks whether there is room. The first of
// a policy counts the rows that it has.
func (p Store) permit(ctx context.Context, op *store.Op) error {
	if p.routed {
		return fmt.Errorf("%w: Policy.MaxKeys of policy %s with Config.Sharding %q: no server has all rows to count them", store.ErrUnsupported, store.Quote(op.Policy), store.ShardingRouter)
	}
	granted, err := p.take(ctx, op)
	if err == nil && granted < 0 && op.Permits != 0 {
		if err = p.beginCount(ctx, op); err == nil {
			granted, err = p.take(ctx, op)
		}
	}
	op.Permits = max(0, granted)
	return err
}

func (p Store) take(ctx context.Context, op *store.Op) (granted int64, err error) {
	err = p.ofCount(ctx, op, func(tx db.DBTX) (err error) {
		granted, err = statement.Queries.KeysPermit(ctx, tx, db.KeysPermitParams{
			Policy: op.Policy, Algorithm: string(op.Algorithm), NowUs: op.Now, LockTimeout: statement.WaitText(op.LockWait),
			Wanted: op.Permits, MaxKeys: op.Bound.MaxKeys,
		})
		return err
	})
	return granted, err
}

// beginCount counts the policy's rows. Nobody has permits for more meanwhile.
func (p Store) beginCount(ctx context.Context, op *store.Op) error {
	var rows int64
	keys := []string{""}
	if m := p.owners.Shards(); m != nil {
		keys = make([]string, m.Len())
		for i := range keys {
			keys[i] = m.Key(i)
		}
	}
	for _, key := range keys {
		err := exec.Translate(p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
			n, err := statement.Keys(ctx, p.at(tx, key), op.Algorithm, op.Policy)
			rows += n
			return err
		}), p.tx)
		if err != nil {
			return err
		}
	}
	return p.ofCount(ctx, op, func(tx db.DBTX) error {
		return statement.Queries.KeysBegin(ctx, tx, db.KeysBeginParams{
			Policy: op.Policy, Algorithm: string(op.Algorithm), NowUs: op.Now, Keys: rows, MaxKeys: op.Bound.MaxKeys,
		})
	})
}

// ofCount runs a statement about the policy's count.
func (p Store) ofCount(ctx context.Context, op *store.Op, f func(db.DBTX) error) error {
	return exec.Translate(p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		return statement.AsLocked(ctx, op.LockWait, f(p.at(tx, "")))
	}), p.tx)
}
