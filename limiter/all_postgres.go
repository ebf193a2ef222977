package limiter

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/db"
)

func (p postgres) takeAll(ctx context.Context, joints []*joint, possible bool) (allowed bool, err error) {
	switch {
	case !possible:
		err = p.runner.do(ctx, func(tx db.DBTX) error { return readAll(ctx, tx, joints) })
	case p.tx:
		err = p.runner.within(ctx, func(tx db.DBTX) (err error) {
			allowed, err = lockThenTake(ctx, tx, joints)
			return err
		})
	default:
		allowed, err = p.takeOrRollBack(ctx, joints)
	}
	return allowed, translate(err, p.tx)
}

// takeOrRollBack takes all in a transaction of its own, which is rolled back
// unless all were granted. Blocks that a denial starts come after that.
func (p postgres) takeOrRollBack(ctx context.Context, joints []*joint) (allowed bool, err error) {
	var blocks []call
	err = p.runner.within(ctx, func(tx db.DBTX) error {
		takes := make([]call, len(joints))
		for i, j := range joints {
			takes[i] = j.take(ctx, j.q)
		}
		if err := together(ctx, tx, takes); err != nil {
			return err
		}
		if allowed = every(joints, granted); allowed {
			return nil
		}
		var reads []call
		reads, blocks = undone(ctx, joints), begunBlocks(ctx, joints)
		if tx, ok := tx.(unwinder); ok {
			after := blocks
			blocks = nil
			return tx.unwind(ctx, reads, after)
		}
		if err := together(ctx, tx, reads); err != nil {
			return err
		}
		return errRolledBack
	})
	if err != errRolledBack {
		return allowed, err
	}
	if len(blocks) > 0 {
		return false, p.runner.within(ctx, func(tx db.DBTX) error { return together(ctx, tx, blocks) })
	}
	return false, nil
}

// undone turns the joints' outcomes into what they are once all that was taken
// is rolled back. The calls that it returns do so for logs: they are for before
// that.
func undone(ctx context.Context, joints []*joint) (reads []call) {
	for _, j := range joints {
		isLog := j.q.algorithm == SlidingWindowLog
		switch {
		case isLog && granted(j):
			reads = append(reads, j.before(ctx))
		case isLog && len(j.parts) > 1:
			reads = append(reads, j.frees(ctx)...)
		default:
			o := j.outcome
			if granted(j) {
				o.view = o.view.less(j.q.units)
			}
			j.seen(func(float64) view { return o.view })
		}
	}
	return reads
}

// begunBlocks are the calls that start the blocks that a denial starts.
func begunBlocks(ctx context.Context, joints []*joint) (blocks []call) {
	for _, j := range joints {
		if j.outcome.granted == 0 && j.q.blockFor > 0 {
			at := j.outcome.updatedAt
			blocks = append(blocks, func(tx db.DBTX) error {
				return tables[j.q.algorithm].block(ctx, tx, db.TokenBucketBlockParams{
					Policy: j.q.policy, Key: j.q.key, ForUs: j.q.blockFor, NowUs: &at, Commit: j.q.commit,
				})
			})
		}
	}
	return blocks
}

// lockThenTake takes all in the caller's transaction, without having to undo
// anything there: asks for a count of 0 lock the rows and tell how they stand
// (and start blocks). If all fit, all are asked for again as of that moment.
func lockThenTake(ctx context.Context, tx db.DBTX, joints []*joint) (allowed bool, err error) {
	locks := make([]call, len(joints))
	for i, j := range joints {
		q := j.q
		q.count = 0
		locks[i] = j.take(ctx, q)
	}
	if err := together(ctx, tx, locks); err != nil {
		return false, err
	}
	takes := make([]call, len(joints))
	for i, j := range joints {
		q, at := j.q, j.outcome.updatedAt
		if q.now == nil {
			q.now = &at
		}
		takes[i] = j.take(ctx, q)
		j.judge(j.outcome.granted == blocked)
	}
	if every(joints, granted) {
		if err := together(ctx, tx, takes); err != nil {
			return false, err
		}
		if !every(joints, granted) {
			return false, fmt.Errorf("%w: a row changed while it was locked", ErrRetryTx)
		}
		return true, nil
	}
	var reads []call
	for _, j := range joints {
		if j.q.algorithm == SlidingWindowLog && !granted(j) {
			reads = append(reads, j.frees(ctx)...)
		} else {
			j.seen(func(float64) view { return j.outcome.view })
		}
	}
	return false, together(ctx, tx, reads)
}

// readAll only reads how the keys stand: one of the joints never fits.
func readAll(ctx context.Context, tx db.DBTX, joints []*joint) error {
	var reads []call
	for _, j := range joints {
		if j.q.algorithm == SlidingWindowLog {
			reads = append(reads, j.frees(ctx)...)
		} else {
			reads = append(reads, j.get(ctx, j.q, func(o outcome) {
				j.outcome = o
				j.seen(func(float64) view { return o.view })
			}))
		}
	}
	if err := together(ctx, tx, reads); err != nil {
		return err
	}
	for _, j := range joints {
		j.judge(j.outcome.blockedUntil > j.outcome.updatedAt)
	}
	return nil
}

// take is the call of a Take, whose outcome is then the joint's.
func (j *joint) take(ctx context.Context, q question) call {
	return func(tx db.DBTX) error {
		o, err := tables[q.algorithm].take(ctx, tx, &q)
		if err != nil {
			return j.named(err)
		}
		if q.now != nil {
			o.now = *q.now
		}
		j.outcome = o
		return nil
	}
}

// get is the call of a Get.
func (j *joint) get(ctx context.Context, q question, then func(outcome)) call {
	return func(tx db.DBTX) error {
		o, err := tables[q.algorithm].get(ctx, tx, &q)
		if err != nil {
			return j.named(err)
		}
		if q.now != nil {
			o.now = *q.now
		}
		then(o)
		return nil
	}
}

// named adds the ask to an error that its values caused.
func (j *joint) named(err error) error {
	if dataError(err) {
		return fmt.Errorf("asks[%d]: %w", j.parts[0].index, err)
	}
	return err
}

// frees are the calls that find, for each part of a log's joint, the entry that
// has to leave before it fits. Without an answer yet, they read that as well.
func (j *joint) frees(ctx context.Context) []call {
	j.views = make([]view, len(j.parts))
	calls := make([]call, len(j.parts))
	answered := j.outcome.view != nil
	for i, part := range j.parts {
		q, at := j.q, j.outcome.updatedAt
		q.units, q.unit = part.upTo, part.upTo
		if answered {
			q.now = &at
		}
		calls[i] = j.get(ctx, q, func(o outcome) {
			j.views[i] = o.view
			if !answered {
				j.outcome = o
			}
		})
	}
	return calls
}

// before is the call that finds what a log holds without what was just granted.
func (j *joint) before(ctx context.Context) call {
	return func(tx db.DBTX) error {
		row, err := queries.SlidingWindowLogBefore(ctx, tx, db.SlidingWindowLogBeforeParams{Policy: j.q.policy, Key: j.q.key})
		if err == nil {
			j.seen(func(float64) view { return logView{units: row.Level, newest: row.NewestAtUs} })
		}
		return err
	}
}
