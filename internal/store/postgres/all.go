package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
	"github.com/pglimit/pglimit/internal/store/postgres/statement"
)

// takeAll takes all groups, or none, or only reads; of a TakeAny, it takes from some.
func (p Store) takeAll(ctx context.Context, op *store.Op) (err error) {
	if p.routed {
		if err := oneKey(op.Groups); err != nil {
			return err
		}
		p.runner = exec.OneByOne(p.runner)
	}
	for _, g := range op.Groups {
		g.LockWait = op.LockWait
	}
	for try := 1; ; try++ {
		op.Allowed, err = p.takeUnlessAdmitted(ctx, op)
		if err != exec.ErrOtherPeriod {
			return exec.Translate(err, p.tx)
		}
		if err := p.compare(ctx, try, &op.Groups[0].Query); err != nil {
			return err
		}
	}
}

func (p Store) takeAllOnce(ctx context.Context, op *store.Op) (allowed bool, err error) {
	groups := p.inLockOrder(op.Groups)
	switch {
	case op.Kind == store.GetAll || op.Kind == store.TakeAll && !store.AllPossible(groups):
		err = p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error { return p.readAll(ctx, tx, groups) })
	case op.Kind == store.TakeAny:
		err = p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) (err error) {
			allowed, err = p.takeAny(ctx, tx, groups, op.Partial)
			return statement.AsLocked(ctx, op.LockWait, err)
		})
	case p.tx || slices.ContainsFunc(groups, (*store.Group).Records):
		err = p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) (err error) {
			allowed, err = p.lockThenTake(ctx, tx, groups)
			return statement.AsLocked(ctx, op.LockWait, err)
		})
	default:
		if groups[0].Admission == nil && p.headroom.likely(groups) {
			allowed, err = p.takeAtOnce(ctx, groups)
		}
		if !allowed && err == nil {
			allowed, err = p.takeOrRollBack(ctx, groups)
		}
		if err == nil {
			p.headroom.note(groups)
		}
	}
	return allowed, err
}

// takeOrRollBack takes all in its own transaction, which is rolled back unless all were
// granted. After that it starts the blocks of a denial and reads the state of the keys.
func (p Store) takeOrRollBack(ctx context.Context, groups []*store.Group) (allowed bool, err error) {
	var blocks, reads []exec.Call
	err = p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
		if err := exec.Together(ctx, tx, p.takes(ctx, groups, 1)); err != nil {
			return statement.AsLocked(ctx, groups[0].LockWait, err)
		}
		if allowed = store.AllFit(groups); allowed {
			return nil
		}
		if err := p.unlessAdmitted(ctx, tx, groups); err != nil {
			return err
		}
		blocks, reads = p.begunBlocks(ctx, groups), p.leftBehind(ctx, groups)
		if u, ok := tx.(exec.Unwinder); ok {
			err := u.Unwind(ctx, blocks, reads)
			blocks, reads = nil, nil
			return statement.AsLocked(ctx, groups[0].LockWait, err)
		}
		return exec.ErrRolledBack
	})
	if err != exec.ErrRolledBack {
		return allowed, err
	}
	if len(blocks) > 0 {
		err := p.runner.Run(ctx, exec.Transaction, func(tx db.DBTX) error {
			return statement.AsLocked(ctx, groups[0].LockWait, exec.Together(ctx, tx, blocks))
		})
		if err != nil {
			return false, err
		}
	}
	if len(reads) > 0 {
		return false, p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error { return exec.Together(ctx, tx, reads) })
	}
	return false, nil
}

// leftBehind returns the calls that read the state after the rollback. It is not
// computed: adding to a level and subtracting again can change its last digit.
func (p Store) leftBehind(ctx context.Context, groups []*store.Group) (reads []exec.Call) {
	for _, g := range groups {
		g.Show(func(float64) algorithm.View { return g.Outcome.View })
		q, at := g.Query, g.Outcome.UpdatedAt
		if q.Now == nil {
			q.Now = &at
		}
		switch {
		case g.Fits():
			reads = append(reads, p.get(ctx, g, q, func(o store.Outcome) {
				o.Granted = g.Outcome.Granted
				g.Outcome = o
				g.Show(func(float64) algorithm.View { return o.View })
			}))
		case g.Algorithm == algorithm.SlidingWindowLog: // the Take returned the view of the sum
			reads = append(reads, p.frees(ctx, g, q, len(g.Needs)-1)...)
		}
	}
	return reads
}

// begunBlocks returns the calls that start the blocks of a denial.
func (p Store) begunBlocks(ctx context.Context, groups []*store.Group) (blocks []exec.Call) {
	for _, g := range groups {
		if !g.Fits() && !g.Outcome.Blocked && g.BlockFor > 0 {
			at := g.Outcome.UpdatedAt
			g.Outcome.BlockedUntil = at + g.BlockFor
			op := &store.Op{Kind: store.Block, Query: g.Query, ForUs: g.BlockFor, DeniedAt: at}
			op.Now = &at
			blocks = append(blocks, p.send(ctx, op))
		}
	}
	return blocks
}

// lockThenTake takes all without having to undo anything: in the caller's transaction, or where
// takes record more than their rows, which they may only once all are locked. Takes of count 0
// lock the rows and return their state; they begin no fixed window. If all fit, all are taken by
// a second reading of the clock: a row may have been used and deleted while the first
// statements waited for others. What fitted still fits.
func (p Store) lockThenTake(ctx context.Context, tx db.DBTX, groups []*store.Group) (allowed bool, err error) {
	if err := exec.Together(ctx, tx, p.takes(ctx, groups, 0)); err != nil {
		return false, err
	}
	if err := p.unlessAdmitted(ctx, tx, groups); err != nil {
		return false, err
	}
	for _, g := range groups {
		g.Judge(g.Outcome.Blocked)
	}
	if store.AllFit(groups) {
		err := exec.Together(ctx, tx, p.takes(ctx, groups, 1))
		if err != nil && (!p.tx || err != exec.ErrOtherPeriod) {
			return false, err
		}
		if err != nil || !store.AllFit(groups) { // some may be taken
			return false, fmt.Errorf("%w: a row changed while it was locked", store.ErrRetryTx)
		}
		return true, nil
	}
	calls := p.begunBlocks(ctx, groups)
	for _, g := range groups {
		g.Show(func(float64) algorithm.View { return g.Outcome.View })
		if g.Algorithm == algorithm.SlidingWindowLog && !g.Fits() { // the view is that of no units
			q := g.Query
			q.Now = &g.Outcome.UpdatedAt
			calls = append(calls, p.frees(ctx, g, q, len(g.Needs))...)
		}
	}
	if calls = append(calls, p.records(ctx, groups)...); len(calls) == 0 {
		return false, nil
	}
	return false, exec.Together(ctx, tx, calls)
}

// records returns the calls that record the marks of groups of which nothing is taken:
// Takes of count 0, of rows that are locked.
func (p Store) records(ctx context.Context, groups []*store.Group) (calls []exec.Call) {
	for _, g := range groups {
		if len(g.Marks) > 0 {
			op := &store.Op{Kind: store.Take, Query: g.Query}
			op.Count = 0
			p.setEdges(&op.Query, op.Now)
			calls = append(calls, p.one(ctx, g, op, func(store.Outcome) {}))
		}
	}
	return calls
}

// takes returns the calls that take count times all groups, one call for each table and
// shard, and for each group that records. Those of count 0 only lock the rows, and enter lots that
// have expired in a ledger.
func (p Store) takes(ctx context.Context, groups []*store.Group, count int) (calls []exec.Call) {
	for len(groups) > 0 {
		n := 1
		// TakeMany uses the ceiling as the room. A queue that has less, because of a
		// deadline, has its own statement in the same round trip.
		for n < len(groups) && p.together(groups[0], groups[n]) && !groups[0].Hurried() && !groups[n].Hurried() && !groups[0].Ledger && !groups[n].Ledger && (count == 0 || groups[0].Admission == nil && !groups[0].Records() && !groups[n].Records()) {
			n++
		}
		if n == 1 {
			calls = append(calls, p.takeOne(ctx, groups[0], count))
		} else {
			calls = append(calls, p.takeRows(ctx, groups[:n], count, (*statement.Table).TakeMany))
		}
		groups = groups[n:]
	}
	return calls
}

// takeRows returns the call of a TakeMany or TakeAll that sets the groups' outcomes.
func (p Store) takeRows(ctx context.Context, groups []*store.Group, count int,
	take func(*statement.Table, context.Context, db.DBTX, []*store.Row, *int64) error,
) exec.Call {
	rows, now := make([]*store.Row, len(groups)), groups[0].Now
	for i, g := range groups {
		p.setEdges(&g.Query, now)
		rows[i] = &store.Row{Query: &g.Query, Count: int64(count)}
	}
	t := statement.Of(groups[0].Algorithm)
	return func(tx db.DBTX) error {
		if err := take(t, ctx, p.atAll(tx, rows), rows, now); err != nil {
			return named(err, groups)
		}
		for i, g := range groups {
			g.Outcome = rows[i].Outcome
		}
		return nil
	}
}

// readAll only reads the state of the keys: one of the groups never fits.
func (p Store) readAll(ctx context.Context, tx db.DBTX, groups []*store.Group) error {
	var reads []exec.Call
	for _, g := range groups {
		reads = append(reads, p.get(ctx, g, g.Query, func(o store.Outcome) {
			g.Outcome = o
			g.Show(func(float64) algorithm.View { return o.View })
		}))
		if g.Algorithm == algorithm.SlidingWindowLog {
			reads = append(reads, p.frees(ctx, g, g.Query, len(g.Needs)-1)...)
		}
	}
	if err := exec.Together(ctx, tx, reads); err != nil {
		return err
	}
	for _, g := range groups {
		g.Judge(g.Outcome.BlockedUntil > g.Outcome.UpdatedAt)
	}
	return nil
}

// takeOne returns the call of a Take that sets the group's outcome.
func (p Store) takeOne(ctx context.Context, g *store.Group, count int) exec.Call {
	op := &store.Op{Kind: store.Take, Query: g.Query, Locks: count == 0}
	op.Count = float64(count)
	p.setEdges(&op.Query, op.Now)
	switch {
	case g.Admission == nil:
	case count > 0:
		return p.admit(ctx, g, op)
	default:
		op.BlockFor = 0 // it may have been admitted before
	}
	return p.one(ctx, g, op, func(o store.Outcome) { g.Outcome = o })
}

// get returns the call of a Get.
func (p Store) get(ctx context.Context, g *store.Group, q store.Query, then func(store.Outcome)) exec.Call {
	return p.one(ctx, g, &store.Op{Kind: store.Get, Query: q}, then)
}

// one returns the call of an op for a group's key, whose outcome then gets.
func (p Store) one(ctx context.Context, g *store.Group, op *store.Op, then func(store.Outcome)) exec.Call {
	return func(tx db.DBTX) error {
		if err := p.send(ctx, op)(tx); err != nil {
			return named(err, []*store.Group{g})
		}
		then(op.Outcome)
		return nil
	}
}

// named adds the requests to an error that their values caused.
func named(err error, groups []*store.Group) error {
	if !exec.IsDataError(err) || exec.IsNotAll(err) {
		return err
	}
	indexes := make([]string, len(groups))
	for i, g := range groups {
		indexes[i] = fmt.Sprintf("requests[%d]", g.Index)
	}
	return fmt.Errorf("%s: %w", strings.Join(indexes, " or "), err)
}

// frees returns the calls that read, for each of the first n requests of a log's group,
// the entry that has to leave before it fits.
func (p Store) frees(ctx context.Context, g *store.Group, q store.Query, n int) []exec.Call {
	calls := make([]exec.Call, n)
	for i, need := range g.Needs[:n] {
		q.Units, q.Unit = need, need
		calls[i] = p.get(ctx, g, q, func(o store.Outcome) { g.Views[i] = o.View })
	}
	return calls
}

// takeAtOnce takes all in one round trip, by statements that fail unless all are granted. It
// reports whether it did. If not, nothing has changed.
func (p Store) takeAtOnce(ctx context.Context, groups []*store.Group) (taken bool, err error) {
	calls := p.takeAlls(ctx, groups)
	if len(calls) == 0 {
		return false, nil
	}
	err = p.runner.Run(ctx, exec.Statement, func(tx db.DBTX) error {
		return statement.AsLocked(ctx, groups[0].LockWait, exec.AtOnce(ctx, tx, calls))
	})
	if exec.IsNotAll(err) || err == exec.ErrOneByOne {
		return false, nil
	}
	return err == nil, err
}

// takeAlls returns a TakeAll for each table and shard. It returns none if that is no way for the
// groups: a queue with less room than its ceiling, or several and no pipeline.
func (p Store) takeAlls(ctx context.Context, groups []*store.Group) (calls []exec.Call) {
	for len(groups) > 0 {
		n := 0
		for n < len(groups) && p.together(groups[0], groups[n]) {
			if groups[n].Hurried() {
				return nil
			}
			n++
		}
		calls = append(calls, p.takeRows(ctx, groups[:n], 1, (*statement.Table).TakeAll))
		groups = groups[n:]
	}
	if len(calls) > 1 && !p.Pipelines() {
		return nil
	}
	return calls
}
