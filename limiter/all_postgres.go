package limiter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
)

func (p postgres) takeAll(ctx context.Context, joints []*joint, possible bool) (allowed bool, err error) {
	for {
		allowed, err = p.takeAllOnce(ctx, joints, possible)
		if err != errOtherPeriod {
			return allowed, translate(err, p.tx)
		}
		i := slices.IndexFunc(joints, func(j *joint) bool { return j.q.Calendar != nil })
		if err := p.compare(ctx, &joints[i].q); err != nil {
			return false, err
		}
	}
}

func (p postgres) takeAllOnce(ctx context.Context, joints []*joint, possible bool) (allowed bool, err error) {
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
	return allowed, err
}

// takeOrRollBack takes all in a transaction of its own, which is rolled back
// unless all were granted. What a denial starts and tells comes after that.
func (p postgres) takeOrRollBack(ctx context.Context, joints []*joint) (allowed bool, err error) {
	var blocks, reads []call
	err = p.runner.within(ctx, func(tx db.DBTX) error {
		if err := together(ctx, tx, takes(ctx, joints, 1, false)); err != nil {
			return err
		}
		if allowed = every(joints, granted); allowed {
			return nil
		}
		blocks, reads = begunBlocks(ctx, joints), leftBehind(ctx, joints)
		if u, ok := tx.(unwinder); ok {
			err := u.unwind(ctx, blocks, reads)
			blocks, reads = nil, nil
			return err
		}
		return errRolledBack
	})
	if err != errRolledBack {
		return allowed, err
	}
	if len(blocks) > 0 {
		err := p.runner.within(ctx, func(tx db.DBTX) error { return together(ctx, tx, blocks) })
		if err != nil {
			return false, err
		}
	}
	if len(reads) > 0 {
		return false, p.runner.do(ctx, func(tx db.DBTX) error { return together(ctx, tx, reads) })
	}
	return false, nil
}

// leftBehind are the calls that find how what was rolled back stands: of a
// level that was added to and given back the last digit could be another.
func leftBehind(ctx context.Context, joints []*joint) (reads []call) {
	for _, j := range joints {
		j.seen(func(float64) algorithm.View { return j.outcome.view })
		q, at := j.q, j.outcome.updatedAt
		if q.now == nil {
			q.now = &at
		}
		switch {
		case granted(j):
			reads = append(reads, j.get(ctx, q, func(o outcome) {
				o.granted = j.outcome.granted
				j.outcome = o
				j.seen(func(float64) algorithm.View { return o.view })
			}))
		case j.q.algorithm == SlidingWindowLog: // the Take told of the sum
			reads = append(reads, j.frees(ctx, q, len(j.parts)-1)...)
		}
	}
	return reads
}

// begunBlocks are the calls that start the blocks that a denial starts.
func begunBlocks(ctx context.Context, joints []*joint) (blocks []call) {
	for _, j := range joints {
		if j.outcome.granted == 0 && j.q.BlockFor > 0 {
			at := j.outcome.updatedAt
			j.outcome.blockedUntil = at + j.q.BlockFor
			blocks = append(blocks, func(tx db.DBTX) error {
				return tables[j.q.algorithm].block(ctx, tx, db.TokenBucketBlockParams{
					Policy: j.q.policy, Key: j.q.key, ForUs: j.q.BlockFor, NowUs: &at, Commit: j.q.commit,
				})
			})
		}
	}
	return blocks
}

// lockThenTake takes all in the caller's transaction, without having to undo
// anything there: asks for a count of 0 lock the rows and tell how they stand.
// If all fit, all are asked for again as of that moment.
func lockThenTake(ctx context.Context, tx db.DBTX, joints []*joint) (allowed bool, err error) {
	if err := together(ctx, tx, takes(ctx, joints, 0, false)); err != nil {
		return false, err
	}
	for _, j := range joints {
		j.judge(j.outcome.granted == blocked)
	}
	if every(joints, granted) {
		if err := together(ctx, tx, takes(ctx, joints, 1, true)); err != nil {
			return false, err
		}
		if !every(joints, granted) {
			return false, fmt.Errorf("%w: a row changed while it was locked", ErrRetryTx)
		}
		return true, nil
	}
	calls := begunBlocks(ctx, joints)
	for _, j := range joints {
		j.seen(func(float64) algorithm.View { return j.outcome.view })
		if j.q.algorithm == SlidingWindowLog && !granted(j) { // it was asked about no units
			q := j.q
			q.now = &j.outcome.updatedAt
			calls = append(calls, j.frees(ctx, q, len(j.parts))...)
		}
	}
	if len(calls) == 0 {
		return false, nil
	}
	return false, together(ctx, tx, calls)
}

// takes are the calls that ask for count times all joints, one call for each
// table; again is as of when the rows were asked for before.
func takes(ctx context.Context, joints []*joint, count int, again bool) (calls []call) {
	for len(joints) > 0 {
		n := 1
		// A TakeMany knows no room but the capacity.
		for n < len(joints) && joints[n].q.algorithm == joints[0].q.algorithm && !joints[0].hurried() && !joints[n].hurried() {
			n++
		}
		now := joints[0].q.now
		if again && now == nil {
			// No later than when any of them was: each row's clock is at that.
			earliest := joints[0].outcome.updatedAt
			for _, j := range joints[:n] {
				earliest = min(earliest, j.outcome.updatedAt)
			}
			now = &earliest
		}
		if n == 1 {
			calls = append(calls, joints[0].take(ctx, count, now))
		} else {
			calls = append(calls, takeMany(ctx, joints[:n], count, now))
		}
		joints = joints[n:]
	}
	return calls
}

// takeMany is the call of a TakeMany, whose outcomes are then the joints'.
func takeMany(ctx context.Context, joints []*joint, count int, now *int64) call {
	rows := make([]*row, len(joints))
	for i, j := range joints {
		rows[i] = &row{q: &j.q, count: count}
	}
	s := new(statement)
	s.reset(rows, now)
	s.commit = joints[0].q.commit
	return func(tx db.DBTX) error {
		if err := tables[joints[0].q.algorithm].takeMany(ctx, tx, s); err != nil {
			return named(err, joints)
		}
		for i, j := range joints {
			j.outcome = rows[i].outcome
		}
		return nil
	}
}

// readAll only reads how the keys stand: one of the joints never fits.
func readAll(ctx context.Context, tx db.DBTX, joints []*joint) error {
	var reads []call
	for _, j := range joints {
		reads = append(reads, j.get(ctx, j.q, func(o outcome) {
			j.outcome = o
			j.seen(func(float64) algorithm.View { return o.view })
		}))
		if j.q.algorithm == SlidingWindowLog {
			reads = append(reads, j.frees(ctx, j.q, len(j.parts)-1)...)
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
func (j *joint) take(ctx context.Context, count int, now *int64) call {
	q := j.q
	q.count, q.now = float64(count), now
	return func(tx db.DBTX) error {
		o, err := tables[q.algorithm].take(ctx, tx, &q)
		if err != nil {
			return named(err, []*joint{j})
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
			return named(err, []*joint{j})
		}
		if q.now != nil {
			o.now = *q.now
		}
		then(o)
		return nil
	}
}

// named adds the asks to an error that their values caused.
func named(err error, joints []*joint) error {
	if !dataError(err) {
		return err
	}
	indexes := make([]string, len(joints))
	for i, j := range joints {
		indexes[i] = fmt.Sprintf("asks[%d]", j.parts[0].index)
	}
	return fmt.Errorf("%s: %w", strings.Join(indexes, " or "), err)
}

// frees are the calls that find, for each of the first n parts of a log's joint,
// the entry that has to leave before it fits.
func (j *joint) frees(ctx context.Context, q question, n int) []call {
	calls := make([]call, n)
	for i, part := range j.parts[:n] {
		q.units, q.unit = part.upTo, part.upTo
		calls[i] = j.get(ctx, q, func(o outcome) { j.views[i] = o.view })
	}
	return calls
}
