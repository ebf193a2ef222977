//go:build unix

package history

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/internal/conformance/verbs"
	"github.com/pglimit/pglimit/limiter"
)

// client does the operations of one caller of a scene, one after the other.
type client struct {
	*process
	*scene
	client  int
	expires bool // its reservations do
	rand    *rand.Rand
	peers   []*process
	records []record
	next    int            // number of the next operation
	done    []granted      // answers that an Undo may give back
	undone  limiter.Result // the one of the next Undo
	denied  *model.Op      // the last request, if it was denied
	expiry  int64          // of its last reservation, by the ground's clock
}

// granted is an answer, and the operation whose it is.
type granted struct {
	op, key int
	policy  limiter.Policy
	result  limiter.Result
}

func newClient(p *process, s *scene, number int, seed uint64) *client {
	return &client{
		process: p, scene: s, client: number, next: (number + 1) * 10_000,
		expires: s.Expires && len(s.plans) == 1,
		rand:    rand.New(rand.NewPCG(seed, uint64(s.number*100+number+1))),
	}
}

func (c *client) run() {
	for range c.ops {
		switch n := c.rand.IntN(12); {
		case c.expires && c.soon():
			op := model.Op{Number: c.number(), Verb: model.Allow, Remember: remember.Microseconds()}
			c.aim(&op, 0)
			op.Units = cmp.Or(op.Policy.Burst, op.Policy.Limit, 30)
			c.do(&op)
		case c.SQL && n < 4:
			c.function()
		case c.Tx && n < 6:
			c.transaction()
		default:
			op := c.draw(false)
			if c.denied != nil && c.rand.IntN(3) > 0 { // a remembered denial may answer
				op, c.denied = *c.denied, nil
				op.Number, op.Clocks = c.number(), nil
				op.Units += float64(c.rand.IntN(2))
			}
			c.do(&op)
		}
		moveClock(c.rand, c.clock.ground, c.expiry)
		if c.await(); c.Loses && c.rand.IntN(80) == 0 {
			c.harm(c.peers[c.rand.IntN(len(c.peers))])
		}
	}
}

// soon reports, mostly, whether the client's last reservation is about to expire, or just
// has. If it still counts, the key has no room for the whole burst.
func (c *client) soon() bool {
	now, _ := c.clock.now()
	left := c.expiry - now
	return -unit/32 < left && left <= unit/4 && c.rand.IntN(3) > 0
}

// number returns a new number for an operation. An AllowAll has one for each request.
func (c *client) number() int {
	c.next += 10
	return c.next
}

// patience is how long a Wait waits: longer than the skew of the processes' clocks, and
// shorter than it takes a unit to leave a queue.
const patience = 60 * time.Millisecond

// draw draws an operation. One in a transaction that is under way only uses rows that it
// has locked.
func (c *client) draw(inTx bool) model.Op {
	op := model.Op{Number: c.number(), Remember: remember.Microseconds(), InTx: inTx}
	c.aim(&op, c.rand.IntN(len(c.plans)))
	if c.Attempts {
		c.drawAttempt(&op)
		return op
	}
	if c.Slots {
		c.drawSlot(&op)
		return op
	}
	op.Units = float64(1 + c.rand.IntN(3))
	if c.Several {
		c.drawSet(&op)
		return op
	}
	verbs := []model.Verb{
		model.Allow, model.Allow, model.Allow, model.Allow, model.AllowUpTo, model.AllowUpTo, model.Check, model.Usage,
		model.Charge, model.Refund, model.Undo, model.Block, model.Unblock,
	}
	if !inTx {
		verbs = append(verbs, model.Reset)
		if c.Sums {
			verbs = append(verbs, model.Sum, model.Sum)
		} else if len(c.plans) > 1 || c.rand.IntN(3) == 0 {
			verbs = append(verbs, model.AllowAll, model.AllowAll, model.AllowAll)
		}
	}
	if c.Reserves {
		verbs = append(verbs, model.Reserve, model.Reserve, model.ReserveUpTo, model.ReserveUpTo)
		if !inTx {
			verbs = append(verbs, model.Settle, model.Settle, model.Cancel)
		}
		if c.UpTo && !inTx {
			verbs = append(verbs[:1], model.Reserve, model.Reserve, model.Reserve, model.ReserveUpTo, model.ReserveUpTo, model.ReserveUpTo,
				model.Settle, model.Settle, model.Settle, model.Settle, model.Settle, model.Cancel, model.Usage)
		}
	}
	if c.Balances {
		verbs = append(verbs, model.Add, model.Add, model.Add, model.Add, model.Add, model.Usage)
		if c.Reserves && !inTx {
			verbs = append(verbs[3:], model.Reserve, model.ReserveUpTo, model.Settle, model.Settle, model.Cancel, model.Cancel)
		}
	}
	if c.Bounded {
		verbs = append(verbs[:8:8], model.Refund) // which no key's first request is lost in
	}
	op.Verb = verbs[c.rand.IntN(len(verbs))]
	c.fill(&op)
	switch op.Verb {
	case model.Allow, model.Wait, model.Reserve:
		op.Floor = c.floor()
	}
	return op
}

// drawAttempt draws an operation about attempts.
func (c *client) drawAttempt(op *model.Op) {
	verbs := []model.Verb{
		model.Attempt, model.Attempt, model.Attempt, model.Attempt, model.Failed, model.Failed, model.Failed, model.Succeeded, model.Succeeded,
		model.Check, model.Usage, model.Block, model.Unblock, model.Reset,
	}
	op.Verb, op.Units = verbs[c.rand.IntN(len(verbs))], 1
	n := len(c.board.posted())
	places := c.scene.number%3 > 0 // the rows of sources have a copy of a block, as of the beginning of a statement
	if places && op.Verb == model.Block {
		op.Verb = model.Attempt
	}
	switch {
	case op.Verb == model.Block:
		op.For = int64(1+c.rand.IntN(8)) * unit / 16
	case op.Verb == model.Attempt, (op.Verb == model.Failed || op.Verb == model.Succeeded) && n == 0:
		op.Verb, op.For = model.Attempt, unit*int64(1+c.rand.IntN(2))
		if places {
			op.From = []string{"", "home", "home", "afar"}[c.rand.IntN(4)]
		}
	case op.Verb == model.Failed, op.Verb == model.Succeeded:
		op.Held = max(1, n-c.rand.IntN(min(n, 4)))
		op.Key = c.board.key(op.Held)
		op.Policy = c.plans[op.Key][0]
	}
}

// drawSlot draws an operation about slots.
func (c *client) drawSlot(op *model.Op) {
	verbs := []model.Verb{
		model.Acquire, model.Acquire, model.Acquire, model.Acquire, model.Acquire, model.Renew, model.Renew, model.Release, model.Release, model.Release,
		model.Check, model.Usage, model.Block, model.Unblock, model.Reset,
	}
	op.Verb, op.Units = verbs[c.rand.IntN(len(verbs))], float64(1+c.rand.IntN(2))
	n := len(c.board.posted())
	switch {
	case op.Verb == model.Block:
		op.For = int64(1+c.rand.IntN(8)) * unit / 16
	case op.Verb == model.Renew && n > 0, op.Verb == model.Release && n > 0:
		op.Held, op.For = max(1, n-c.rand.IntN(min(n, 4))), unit*int64(1+c.rand.IntN(2))
		op.Key = c.board.key(op.Held)
		op.Policy = c.plans[op.Key][0]
	case op.Verb == model.Acquire, op.Verb == model.Renew, op.Verb == model.Release:
		op.Verb, op.For = model.Acquire, unit*int64(1+c.rand.IntN(3))
	}
}

// aim sets an operation's key and plan.
func (c *client) aim(op *model.Op, key int) {
	plans := c.plans[key]
	op.Key, op.Policy = key, plans[c.rand.IntN(len(plans))]
}

// fill draws what a verb needs.
func (c *client) fill(op *model.Op) {
	queue := op.Policy.Algorithm == limiter.LeakyBucketQueue
	switch op.Verb {
	case model.Allow:
		if c.Idempotent && c.rand.IntN(3) == 0 {
			op.Idem = 1 + c.rand.IntN(4)
			op.Units = float64(1 + op.Idem%2) // mostly the same for each
		}
		if c.rand.IntN(15) == 0 {
			op.Units = 30 // it can never fit
		}
		if queue && !op.InTx && !c.Loses && op.Idem == 0 && c.rand.IntN(3) == 0 {
			op.Verb, op.For = model.Wait, patience.Microseconds()
		}
	case model.AllowUpTo:
		op.Units = float64(1 + c.rand.IntN(9))
	case model.Check:
		op.Units = float64(c.rand.IntN(6))
	case model.Refund:
		if queue {
			op.Verb = model.Charge
		}
	case model.Undo:
		i := slices.IndexFunc(c.done, func(g granted) bool { return g.key == op.Key })
		if i < 0 || queue {
			op.Verb = model.Check
			return
		}
		g := c.done[i]
		c.done = slices.Delete(c.done, i, i+1)
		op.Undone, op.Policy, op.Units, c.undone = g.op, g.policy, g.result.Granted, g.result
	case model.Add:
		op.Units, op.Order = float64(1+c.rand.IntN(9)), []int{0, 0, 0, -1, 2}[c.rand.IntN(5)]
		if now, _ := c.clock.now(); c.rand.IntN(4) > 0 {
			op.For = now + []int64{unit / 16, unit / 2, unit, 2 * unit}[c.rand.IntN(4)]
			c.expiry = op.For - c.clock.skew
		} else if c.Idempotent {
			op.Idem = 1 + c.rand.IntN(4)
			op.Units = float64(1 + op.Idem%2)
		}
	case model.Block:
		op.For = int64(1+c.rand.IntN(8)) * unit / 16
	case model.Reserve, model.ReserveUpTo:
		c.fillReserve(op, queue)
	case model.Settle, model.Cancel:
		n := len(c.board.posted())
		if n == 0 {
			op.Verb = model.Check
			return
		}
		op.Held = max(1, n-c.rand.IntN(min(n, 4)))
		op.Units = float64(c.rand.IntN(5))
	case model.AllowAll:
		c.fillAll(op)
	}
}

// fillReserve draws what a reservation needs.
func (c *client) fillReserve(op *model.Op, queue bool) {
	if queue {
		op.Verb = model.Allow
		return
	}
	op.For = 1000 * unit
	if c.expires {
		op.For = unit * int64(1+c.rand.IntN(2))
	}
	if c.Idempotent && c.rand.IntN(2) == 0 {
		op.Idem = 1 + c.rand.IntN(6)
		op.Units = float64(1 + op.Idem%2)
	}
	op.Estimate = c.UpTo && op.Idem == 0 && !op.InTx && c.rand.IntN(3) > 0
	if op.Verb == model.ReserveUpTo && (op.Idem == 0 || op.Idem%2 == 1) { // more than may be left
		if op.Units = float64(9 - op.Idem); c.UpTo {
			op.Units = float64(1 + c.rand.IntN(9))
		}
	}
}

// floor draws a share of the burst that a request leaves to others.
func (c *client) floor() float64 {
	floors := []float64{0, 0, 0, 0, 0, 0.25, 0.5}
	switch {
	case c.Balances:
		return 0
	case c.Floors:
		floors = floors[4:]
	}
	return floors[c.rand.IntN(len(floors))]
}

// fillAll draws the requests of an AllowAll. Where reservations expire it has only one: a
// denied AllowAll gives them back and is tried again in many statements.
func (c *client) fillAll(op *model.Op) {
	for i := range c.plans {
		requests := 1 + c.rand.IntN(2)
		if c.expires {
			requests = 1
		}
		floor := c.floor() // one for all requests of a key
		if op.InTx && floor > 0 {
			requests = 1 // a sum that can never fit would lock no row
		}
		for range requests {
			op.Requests = append(op.Requests, model.Request{Key: i, Policy: c.plans[i][0], Units: float64(1 + c.rand.IntN(2)), Floor: floor})
		}
	}
	c.rand.Shuffle(len(op.Requests), func(i, j int) { op.Requests[i], op.Requests[j] = op.Requests[j], op.Requests[i] })
}

// send makes a call of l.
func (c *client) send(ctx context.Context, l verbs.Limiter, op *model.Op) (o model.Out, err error) {
	call := verbs.Call{Op: string(op.Verb), Request: op.Policy.Request(c.scene.key(op.Key), op.Units), Undone: c.undone, For: time.Duration(op.For) * time.Microsecond, From: op.From}
	call.Floor, call.Estimate = op.Floor, op.Estimate
	switch op.Verb {
	case model.Wait:
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		o.Result, err = c.life.Load().limiter.DoWait(ctx, call.Request)
		return o, err
	case model.Settle, model.Cancel, model.Succeeded, model.Failed, model.Renew, model.Release:
		call.ID = c.board.posted()[op.Held-1]
	case model.Sum:
		const query = "SELECT coalesce(sum(units), 0) FROM pglimit_usage WHERE policy = $1 AND key = $2"
		return o, c.life.Load().pool.QueryRow(ctx, query, op.Policy.Name, call.Key).Scan(&o.Sum)
	case model.SettleAll, model.CancelAll:
		for _, q := range op.Requests {
			call.IDs = append(call.IDs, c.board.posted()[q.Held-1])
		}
	}
	order := ""
	if op.Idem != 0 {
		order = fmt.Sprint("order-", op.Idem)
	}
	for _, q := range op.Requests {
		call.Requests = append(call.Requests, limiter.Request{Policy: q.Policy, Key: c.scene.name, Cost: q.Units, Floor: q.Floor, IdempotencyKey: order})
	}
	if op.Verb == model.Add {
		call.Lot.Priority = op.Order
		if op.For != 0 {
			call.Lot.Expires = time.UnixMicro(op.For)
		}
		call.Lot.IdempotencyKey = order
	} else if call.IdempotencyKey = order; order != "" && op.Verb == model.Allow {
		call.Op = "once"
	}
	a := call.Make(ctx, l)
	if o.Usage = a.Usage; len(op.Requests) > 0 {
		o.All = a.Results
		for i, id := range a.IDs {
			o.IDs, o.Expires = append(o.IDs, c.board.post(op.Requests[i].Key, id)), a.Expires
		}
	} else if len(a.PerRequest) > 0 {
		o.Result = a.PerRequest[0]
	}
	if o.Fence = a.Fence; op.Verb == model.Renew {
		o.Expires = a.Expires
	}
	if a.Err == nil && a.ID != "" {
		c.reserved(&o, op.Key, a.ID, a.Expires)
	}
	return o, a.Err
}

// reserved notes a reservation that was made.
func (c *client) reserved(o *model.Out, key int, id string, expires time.Time) {
	o.Held, o.Expires = c.board.post(key, id), expires
	c.expiry = expires.UnixMicro() - c.clock.skew
}

// do makes a call and records it.
func (c *client) do(op *model.Op) {
	ctx, cancel := c.lose(context.Background())
	defer cancel()
	c.record(op, func(r *record) error {
		o, err := c.send(ctx, c.life.Load().limiter, op)
		r.Out = o
		if err == nil {
			c.keep(op, o)
		}
		if c.denied = nil; (op.Verb == model.Allow || op.Verb == model.Wait) && op.Idem == 0 && err == nil && !o.Result.Allowed {
			c.denied = op
		}
		return err
	})
}
