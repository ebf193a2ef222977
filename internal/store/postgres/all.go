package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// TakeAll takes all joints, which are in lock order, or none.
func (p Store) TakeAll(ctx context.Context, joints []*store.Joint, possible bool) (allowed bool, err error) {
	for try := 1; ; try++ {
		allowed, err = p.takeAllOnce(ctx, joints, possible)
		if err != exec.ErrOtherPeriod {
			return allowed, exec.Translate(err, p.tx)
		}
		if err := p.compare(ctx, try); err != nil {
			return false, err
		}
	}
}

func (p Store) takeAllOnce(ctx context.Context, joints []*store.Joint, possible bool) (allowed bool, err error) {
	switch {
	case !possible:
		err = p.runner.Do(ctx, func(tx db.DBTX) error { return readAll(ctx, tx, joints) })
	case p.tx:
		err = p.runner.Within(ctx, func(tx db.DBTX) (err error) {
			allowed, err = p.lockThenTake(ctx, tx, joints)
			return err
		})
	default:
		if p.room.likely(joints) {
			allowed, err = p.takeAtOnce(ctx, joints)
		}
		if !allowed && err == nil {
			allowed, err = p.takeOrRollBack(ctx, joints)
		}
		if err == nil {
			p.room.note(joints)
		}
	}
	return allowed, err
}

// takeOrRollBack takes all in its own transaction, which is rolled back unless all were
// granted. After that it starts the blocks of a denial and reads the state of the keys.
func (p Store) takeOrRollBack(ctx context.Context, joints []*store.Joint) (allowed bool, err error) {
	var blocks, reads []exec.Call
	err = p.runner.Within(ctx, func(tx db.DBTX) error {
		if err := exec.Together(ctx, tx, p.takes(ctx, joints, 1)); err != nil {
			return asLocked(joints[0].LockWait, err)
		}
		if allowed = store.AllFit(joints); allowed {
			return nil
		}
		blocks, reads = begunBlocks(ctx, joints), leftBehind(ctx, joints)
		if u, ok := tx.(exec.Unwinder); ok {
			err := u.Unwind(ctx, blocks, reads)
			blocks, reads = nil, nil
			return asLocked(joints[0].LockWait, err)
		}
		return exec.ErrRolledBack
	})
	if err != exec.ErrRolledBack {
		return allowed, err
	}
	if len(blocks) > 0 {
		err := p.runner.Within(ctx, func(tx db.DBTX) error {
			return asLocked(joints[0].LockWait, exec.Together(ctx, tx, blocks))
		})
		if err != nil {
			return false, err
		}
	}
	if len(reads) > 0 {
		return false, p.runner.Do(ctx, func(tx db.DBTX) error { return exec.Together(ctx, tx, reads) })
	}
	return false, nil
}

// leftBehind returns the calls that read the state after the rollback. It is not
// computed: adding to a level and subtracting again can change its last digit.
func leftBehind(ctx context.Context, joints []*store.Joint) (reads []exec.Call) {
	for _, j := range joints {
		j.Show(func(float64) algorithm.View { return j.Outcome.View })
		q, at := j.Query, j.Outcome.UpdatedAt
		if q.Now == nil {
			q.Now = &at
		}
		switch {
		case j.Fits():
			reads = append(reads, get(ctx, j, q, func(o store.Outcome) {
				o.Granted = j.Outcome.Granted
				j.Outcome = o
				j.Show(func(float64) algorithm.View { return o.View })
			}))
		case j.Algorithm == algorithm.SlidingWindowLog: // the Take returned the view of the sum
			reads = append(reads, frees(ctx, j, q, len(j.Needs)-1)...)
		}
	}
	return reads
}

// begunBlocks returns the calls that start the blocks of a denial.
func begunBlocks(ctx context.Context, joints []*store.Joint) (blocks []exec.Call) {
	for _, j := range joints {
		if !j.Fits() && !j.Outcome.Blocked && j.BlockFor > 0 {
			at := j.Outcome.UpdatedAt
			j.Outcome.BlockedUntil = at + j.BlockFor
			q := j.Query
			q.Now = &at
			blocks = append(blocks, func(tx db.DBTX) error { return statement.Of(q.Algorithm).Block(ctx, tx, &q) })
		}
	}
	return blocks
}

// lockThenTake takes all in the caller's transaction without having to undo anything
// there. Takes of count 0 lock the rows and return their state; they begin no fixed
// window. If all fit, all are taken by a second reading of the clock: a row may have been
// used and deleted while the first statements waited for others. What fitted still fits.
func (p Store) lockThenTake(ctx context.Context, tx db.DBTX, joints []*store.Joint) (allowed bool, err error) {
	if err := exec.Together(ctx, tx, p.takes(ctx, joints, 0)); err != nil {
		return false, err
	}
	for _, j := range joints {
		j.Judge(j.Outcome.Blocked)
	}
	if store.AllFit(joints) {
		err := exec.Together(ctx, tx, p.takes(ctx, joints, 1))
		if err != nil && err != exec.ErrOtherPeriod {
			return false, err
		}
		if err != nil || !store.AllFit(joints) { // some may be taken
			return false, fmt.Errorf("%w: a row changed while it was locked", store.ErrRetryTx)
		}
		return true, nil
	}
	calls := begunBlocks(ctx, joints)
	for _, j := range joints {
		j.Show(func(float64) algorithm.View { return j.Outcome.View })
		if j.Algorithm == algorithm.SlidingWindowLog && !j.Fits() { // the view is that of no units
			q := j.Query
			q.Now = &j.Outcome.UpdatedAt
			calls = append(calls, frees(ctx, j, q, len(j.Needs))...)
		}
	}
	if len(calls) == 0 {
		return false, nil
	}
	return false, exec.Together(ctx, tx, calls)
}

// takes returns the calls that take count times all joints, one call for each table.
func (p Store) takes(ctx context.Context, joints []*store.Joint, count int) (calls []exec.Call) {
	for len(joints) > 0 {
		n := 1
		// TakeMany uses the capacity as the room. A queue that has less, because of a
		// deadline, has its own statement in the same round trip.
		for n < len(joints) && joints[n].Algorithm == joints[0].Algorithm && !joints[0].Hurried() && !joints[n].Hurried() {
			n++
		}
		if n == 1 {
			calls = append(calls, p.takeOne(ctx, joints[0], count))
		} else {
			calls = append(calls, p.takeRows(ctx, joints[:n], count, (*statement.Table).TakeManyLater))
		}
		joints = joints[n:]
	}
	return calls
}

// takeRows returns the call of a TakeMany or TakeAll that sets the joints' outcomes.
func (p Store) takeRows(ctx context.Context, joints []*store.Joint, count int,
	later func(*statement.Table, []*store.Row, *int64) func(context.Context, db.DBTX) error,
) exec.Call {
	rows, now := make([]*store.Row, len(joints)), joints[0].Now
	for i, j := range joints {
		p.setEdges(&j.Query, now)
		rows[i] = &store.Row{Query: &j.Query, Count: int64(count)}
	}
	take := later(statement.Of(joints[0].Algorithm), rows, now)
	return func(tx db.DBTX) error {
		if err := take(ctx, tx); err != nil {
			return named(err, joints)
		}
		for i, j := range joints {
			j.Outcome = rows[i].Outcome
		}
		return nil
	}
}

// readAll only reads the state of the keys: one of the joints never fits.
func readAll(ctx context.Context, tx db.DBTX, joints []*store.Joint) error {
	var reads []exec.Call
	for _, j := range joints {
		reads = append(reads, get(ctx, j, j.Query, func(o store.Outcome) {
			j.Outcome = o
			j.Show(func(float64) algorithm.View { return o.View })
		}))
		if j.Algorithm == algorithm.SlidingWindowLog {
			reads = append(reads, frees(ctx, j, j.Query, len(j.Needs)-1)...)
		}
	}
	if err := exec.Together(ctx, tx, reads); err != nil {
		return err
	}
	for _, j := range joints {
		j.Judge(j.Outcome.BlockedUntil > j.Outcome.UpdatedAt)
	}
	return nil
}

// takeOne returns the call of a Take that sets the joint's outcome.
func (p Store) takeOne(ctx context.Context, j *store.Joint, count int) exec.Call {
	q := j.Query
	q.Count = float64(count)
	p.setEdges(&q, q.Now)
	return func(tx db.DBTX) error {
		o, err := statement.Of(q.Algorithm).Take(ctx, tx, &q)
		if err != nil {
			return named(err, []*store.Joint{j})
		}
		if q.Now != nil {
			o.Now = *q.Now
		}
		j.Outcome = o
		return nil
	}
}

// get returns the call of a Get.
func get(ctx context.Context, j *store.Joint, q store.Query, then func(store.Outcome)) exec.Call {
	return func(tx db.DBTX) error {
		o, err := statement.Of(q.Algorithm).Get(ctx, tx, &q)
		if err != nil {
			return named(err, []*store.Joint{j})
		}
		if q.Now != nil {
			o.Now = *q.Now
		}
		then(o)
		return nil
	}
}

// named adds the requests to an error that their values caused.
func named(err error, joints []*store.Joint) error {
	if !exec.IsDataError(err) || exec.IsNotAll(err) {
		return err
	}
	indexes := make([]string, len(joints))
	for i, j := range joints {
		indexes[i] = fmt.Sprintf("requests[%d]", j.Index)
	}
	return fmt.Errorf("%s: %w", strings.Join(indexes, " or "), err)
}

// frees returns the calls that read, for each of the first n requests of a log's joint,
// the entry that has to leave before it fits.
func frees(ctx context.Context, j *store.Joint, q store.Query, n int) []exec.Call {
	calls := make([]exec.Call, n)
	for i, need := range j.Needs[:n] {
		q.Units, q.Unit = need, need
		calls[i] = get(ctx, j, q, func(o store.Outcome) { j.Views[i] = o.View })
	}
	return calls
}
