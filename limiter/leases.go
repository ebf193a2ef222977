package limiter

import (
	"context"
	"math"
	"strings"
	"time"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/lease"
)

// leases are the blocks of units that this process may grant: see Policy.Lease.
type leases struct {
	*lease.Table[rowKey, lent]
	start func(func()) // in the background
}

// leaseOptions returns the options of blocks of at most keys keys.
func leaseOptions(keys int, clock lease.Clock) lease.Options[rowKey, lent] {
	return lease.Options[rowKey, lent]{
		Keys: keys, Least: 4, Share: 16, Clock: clock, Clone: rowKey.clone,
		After: func(d time.Duration, f func()) { time.AfterFunc(d, f) },
	}
}

// lease makes the engine take leases. start runs a function in the background.
func (e *engine) lease(o lease.Options[rowKey, lent], start func(func())) (err error) {
	o.Return = func(b *block, units, age int64) { start(func() { e.returnUnits(b, units, age) }) }
	e.leases = &leases{start: start}
	e.leases.Table, err = lease.New(o)
	return err
}

// inBackground runs f in a goroutine that Close waits for.
func (e *engine) inBackground(f func()) {
	e.withdrawals.add()
	go func() {
		defer e.withdrawals.done()
		f()
	}()
}

// lendable reports whether a lease may grant a request.
func lendable(in *Request) bool {
	return in.IdempotencyKey == "" && in.Cost >= 1 && in.Cost <= algorithm.MaxUnits && in.Cost == math.Trunc(in.Cost)
}

// lend grants a request from a block of this process, if one has the units. It sets r.
func (e *engine) lend(in *Request, r *Result) (ok bool) {
	if !lendable(in) {
		return false
	}
	newest := e.leases.Lookup(rowOf(in))
	if newest == nil || newest.Value.result.Policy != in.Policy {
		return false
	}
	b, t := newest.Take(int64(in.Cost))
	if b == nil {
		return false
	}
	if t.Renew > 0 {
		e.renew(in, t.Renew)
	}
	newest.Value.answer(r, t.Left, t.Age)
	r.Granted, r.block = in.Cost, b
	return true
}

// answer sets r to the Result for a key of which left units are in this process.
func (v *lent) answer(r *Result, left, age int64) {
	*r = v.result
	since := time.Duration(max(0, age-v.lag)).Truncate(time.Microsecond)
	r.At, r.ResetAfter = r.At.Add(since), less(r.ResetAfter, since)
	r.Level, r.Remaining = max(0, r.Level-float64(left)), r.Remaining+float64(left)
	r.Full = r.Full && left == 0
}

// counted notes what a row granted. If the key is hot, it takes a block for it.
func (e *engine) counted(in *Request, r *Result) {
	if !lendable(in) {
		return
	}
	life := int64(in.Policy.LeaseLife())
	if life == 0 {
		return
	}
	if n := e.leases.Granted(rowOf(in), int64(in.Cost), int64(r.Remaining), life); n > 0 {
		e.renew(in, n)
	}
}

// renew takes a block of units in the background.
func (e *engine) renew(in *Request, units int64) {
	block := in.Policy.Request(strings.Clone(in.Key), float64(units))
	e.leases.start(func() { e.takeBlock(&block) })
}

func (e *engine) takeBlock(in *Request) {
	k := rowOf(in)
	at := e.leases.Begin(k)
	op, err := e.unitsOf(store.Take, in)
	if err == nil {
		op.Merges, op.BlockFor, op.OwnRow = true, 0, true // no caller has asked for more than there is
		err = e.sendBounded(context.Background(), op)
	}
	if err != nil || op.Outcome.Granted == 0 {
		e.leases.Refused(k)
		return
	}
	r := result(&op.Query, verbUpTo, &op.Outcome, in.Policy.Limit, SourceLease)
	v := lent{result: r, grant: r.grant, lag: e.leases.Age(at)}
	v.result.Policy, v.result.RetryAfter, v.result.Reason, v.result.grant = in.Policy, 0, "", algorithm.Grant{}
	life := in.Policy.LeaseLife()
	if in.Policy.Algorithm.bucket() {
		v.rate = in.Policy.Limit / float64(in.Policy.Period)
	} else {
		life = min(life, duration(r.grant.EndsAt-op.Outcome.Now))
	}
	life -= life / 1000 // clocks differ in rate
	e.leases.Add(at, k, v, int64(op.Outcome.Granted), int64(r.Remaining), int64(life))
	if e.closed.Load() {
		e.leases.End()
	}
}

// returnUnits gives back units of a block of an age, as Undo does: not those that may have
// leaked since.
func (e *engine) returnUnits(b *block, units, age int64) {
	if float64(units) <= b.Value.rate*float64(age) {
		return
	}
	in := b.Value.result.Policy.Request(b.Key.key, float64(units))
	if op, err := e.unitsOf(store.Undo, &in); err == nil {
		op.Grant = b.Value.grant
		_ = e.undo(context.Background(), &in, op)
	}
}

// unitsOf returns an op for units of a request, one by one.
func (e *engine) unitsOf(kind store.Kind, in *Request) (*store.Op, error) {
	op := &store.Op{Kind: kind}
	err := e.compileKey(&op.Query, new(Policy), in)
	op.Units, op.Cost, op.Count, op.Unit, op.Room = in.Cost, 1, in.Cost, 1, op.Capacity
	return op, err
}

// undoLent gives a request's units back to the block that granted them. It reports whether
// that could take them.
func (e *engine) undoLent(ctx context.Context, in Request, b *block) (r Result, ok bool) {
	if began := e.begin(); b != nil && !e.closed.Load() && b.Key == rowOf(&in) && lendable(&in) && b.Put(int64(in.Cost)) {
		in.Policy = b.Value.result.Policy
		b.Value.answer(&r, b.Left(), b.Age())
		r.Granted = in.Cost
		e.finish(ctx, verbUndo, &in, &r, nil, began)
		return r, true
	}
	return r, false
}
