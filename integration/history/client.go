//go:build unix

package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// client does the operations of one caller of a scene, one after the other.
type client struct {
	*process
	*scene
	board   *board
	client  int
	expires bool // its reservations do
	rand    *rand.Rand
	records []record
	next    int       // number of the next operation
	done    []granted // answers that an Undo may give back
	denied  *call     // the last request, if it was denied
	expiry  int64     // of its last reservation, by the ground's clock
}

// granted is an answer, and the operation whose it is.
type granted struct {
	op, key int
	plan    int
	result  limiter.Result
}

func newClient(p *process, s *scene, b *board, number int, seed uint64) *client {
	return &client{
		process: p, scene: s, board: b, client: number, next: (number + 1) * 10_000,
		expires: s.Expires && len(s.keys) == 1,
		rand:    rand.New(rand.NewPCG(seed, uint64(s.number*100+number+1))),
	}
}

func (c *client) run() {
	for range c.ops {
		switch n := c.rand.IntN(12); {
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
	}
}

// number returns a new number for an operation. An AllowAll has one for each request.
func (c *client) number() int {
	c.next += 10
	return c.next
}

// patience is how long a Wait waits: longer than the skew of the processes' clocks, and
// shorter than it takes a unit to leave a queue.
const patience = 60 * time.Millisecond

// call is an operation with what only this client needs for it.
type call struct {
	model.Op
	plan int
	undo limiter.Result
}

// draw draws an operation. One in a transaction that is under way only uses rows that it
// has locked.
func (c *client) draw(inTx bool) call {
	op := call{Op: model.Op{Number: c.number(), Remember: remember.Microseconds(), InTx: inTx}}
	c.aim(&op, c.rand.IntN(len(c.keys)))
	op.Units = float64(1 + c.rand.IntN(3))
	verbs := []model.Verb{
		model.Allow, model.Allow, model.Allow, model.Allow, model.AllowUpTo, model.AllowUpTo, model.Check, model.Usage,
		model.Charge, model.Refund, model.Undo, model.Block, model.Unblock,
	}
	if !inTx {
		verbs = append(verbs, model.Reset)
		if len(c.keys) > 1 || c.rand.IntN(3) == 0 {
			verbs = append(verbs, model.AllowAll, model.AllowAll, model.AllowAll)
		}
	}
	if c.Reserves {
		verbs = append(verbs, model.Reserve, model.Reserve, model.Reserve)
		if !inTx {
			verbs = append(verbs, model.Settle, model.Settle, model.Cancel)
		}
	}
	op.Verb = verbs[c.rand.IntN(len(verbs))]
	c.fill(&op)
	return op
}

// aim sets an operation's key and plan.
func (c *client) aim(op *call, key int) {
	op.Key, op.plan = key, c.rand.IntN(len(c.keys[key].plans))
	op.Rules = c.keys[key].rules[op.plan]
}

// fill draws what a verb needs.
func (c *client) fill(op *call) {
	queue := op.Rules.Kind == model.Queue
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
		if len(c.done) == 0 || queue {
			op.Verb = model.Check
			return
		}
		i := c.rand.IntN(len(c.done))
		if g := c.done[i]; g.key == op.Key && !queue {
			c.done = append(c.done[:i], c.done[i+1:]...)
			op.Undone, op.undo, op.plan, op.Rules = g.op, g.result, g.plan, c.keys[g.key].rules[g.plan]
			op.Units = g.result.Granted
		} else {
			op.Verb = model.Check
		}
	case model.Block:
		op.For = int64(1+c.rand.IntN(8)) * unit / 16
	case model.Reserve:
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
	case model.Settle, model.Cancel:
		n := int(c.board.count.Load())
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

// fillAll draws the requests of an AllowAll. Where reservations expire it has only one: a
// denied AllowAll gives them back and is tried again in many statements.
func (c *client) fillAll(op *call) {
	for i := range c.keys {
		requests := 1 + c.rand.IntN(2)
		if c.expires {
			requests = 1
		}
		for range requests {
			op.Requests = append(op.Requests, model.Request{Key: i, Rules: c.keys[i].rules[0], Units: float64(1 + c.rand.IntN(2))})
		}
	}
	c.rand.Shuffle(len(op.Requests), func(i, j int) { op.Requests[i], op.Requests[j] = op.Requests[j], op.Requests[i] })
}

// verbs are the methods that a limiter and its transactions share.
type verbs interface {
	Do(context.Context, limiter.Request) (limiter.Result, error)
	AllowUpTo(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Check(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Usage(context.Context, limiter.Policy, string) (limiter.Usage, error)
	Charge(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Refund(context.Context, limiter.Policy, string, float64) (limiter.Result, error)
	Undo(context.Context, limiter.Policy, string, limiter.Result) (limiter.Result, error)
	Block(context.Context, limiter.Policy, string, time.Duration) error
	Unblock(context.Context, limiter.Policy, string) error
	Reset(context.Context, limiter.Policy, string) error
	Reserve(context.Context, limiter.Request, time.Duration) (limiter.Reservation, error)
	Settle(context.Context, string, float64) (limiter.Result, error)
	Cancel(context.Context, string) error
	AllowAll(context.Context, ...limiter.Request) (limiter.Results, error)
}

// outcome is what came of a call, with what only this client needs of it.
type outcome struct {
	model.Out
	sources []limiter.Source
	results []limiter.Result
}

// send makes a call of l.
func (c *client) send(ctx context.Context, l verbs, op *call) (o outcome, err error) {
	k := c.keys[op.Key]
	p, key := k.plans[op.plan], k.name
	request := limiter.Request{Policy: p, Key: key, Cost: op.Units}
	if op.Idem != 0 {
		request.IdempotencyKey = fmt.Sprint("order-", op.Idem)
	}
	var r limiter.Result
	switch op.Verb {
	case model.Allow:
		r, err = l.Do(ctx, request)
	case model.Wait:
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		r, err = c.limiter.DoWait(ctx, request)
	case model.AllowUpTo:
		r, err = l.AllowUpTo(ctx, p, key, op.Units)
	case model.Check:
		r, err = l.Check(ctx, p, key, op.Units)
	case model.Charge:
		r, err = l.Charge(ctx, p, key, op.Units)
	case model.Refund:
		r, err = l.Refund(ctx, p, key, op.Units)
	case model.Undo:
		r, err = l.Undo(ctx, p, key, op.undo)
	case model.Block:
		return o, l.Block(ctx, p, key, time.Duration(op.For)*time.Microsecond)
	case model.Unblock:
		return o, l.Unblock(ctx, p, key)
	case model.Reset:
		return o, l.Reset(ctx, p, key)
	case model.Cancel:
		return o, l.Cancel(ctx, c.board.id(op.Held))
	case model.Settle:
		r, err = l.Settle(ctx, c.board.id(op.Held), op.Units)
	case model.Usage:
		var u limiter.Usage
		u, err = l.Usage(ctx, p, key)
		r, o.Spent, o.Reserved, o.Reservations = u.Result, u.Spent, u.Reserved, u.Reservations
		if !u.WindowEnds.IsZero() {
			o.WindowEnds = u.WindowEnds.UnixMicro()
		}
	case model.Reserve:
		var h limiter.Reservation
		h, err = l.Reserve(ctx, request, time.Duration(op.For)*time.Microsecond)
		if r = h.Result; err == nil && h.ID != "" {
			c.reserved(&o.Out, h.ID, h.Expires)
		}
	case model.AllowAll:
		return c.sendAll(ctx, l, op)
	}
	if err == nil {
		o.Answer, o.sources, o.results = answer(r), []limiter.Source{r.Source}, []limiter.Result{r}
	}
	return o, err
}

// reserved notes a reservation that was made.
func (c *client) reserved(o *model.Out, id string, expires time.Time) {
	o.Held, o.Expires = c.clock.post(c.board, id), expires.UnixMicro()
	c.expiry = o.Expires - c.clock.skew
}

func (c *client) sendAll(ctx context.Context, l verbs, op *call) (o outcome, err error) {
	var requests []limiter.Request
	for _, q := range op.Requests {
		requests = append(requests, c.keys[q.Key].plans[0].Request(c.keys[q.Key].name, q.Units))
	}
	all, err := l.AllowAll(ctx, requests...)
	o.Answer.Allowed, o.DeniedBy, o.results = all.Allowed, all.DeniedBy, all.PerRequest
	for _, r := range all.PerRequest {
		o.Each, o.sources = append(o.Each, answer(r)), append(o.sources, r.Source)
	}
	return o, err
}

// fault sorts an error: of the caller, one after which nothing has changed, or one that
// leaves open whether the operation happened.
func fault(err error) (fault string, nothing bool) {
	var state *pgconn.PgError
	switch {
	case errors.Is(err, limiter.ErrNoReservation):
		return model.Unknown, false
	case errors.Is(err, limiter.ErrReservationEnded):
		return model.Ended, false
	case errors.Is(err, limiter.ErrInvalid):
		return model.Invalid, false
	case errors.Is(err, limiter.ErrOverloaded), errors.Is(err, limiter.ErrLocked), errors.Is(err, limiter.ErrRetryTx):
		return "", true
	case errors.As(err, &state):
		switch state.Code {
		case "P0002":
			return model.Unknown, false
		case "55000":
			return model.Ended, false
		case "40001", "40P01":
			return "", true
		}
	}
	return "", false
}

// do makes a call and records it.
func (c *client) do(op *call) {
	ctx, cancel := c.lose(context.Background())
	defer cancel()
	c.record(op, func(r *record) error {
		o, err := c.send(ctx, c.limiter, op)
		r.Out, r.Sources = o.Out, o.sources
		if err == nil {
			c.keep(op, o)
		}
		if c.denied = nil; (op.Verb == model.Allow || op.Verb == model.Wait) && op.Idem == 0 && err == nil && !o.Answer.Allowed {
			c.denied = op
		}
		return err
	})
}

// keep keeps answers for an Undo.
func (c *client) keep(op *call, o outcome) {
	switch op.Verb {
	case model.Allow, model.AllowUpTo:
		c.done = append(c.done, granted{op.Number, op.Key, op.plan, o.results[0]})
	case model.AllowAll:
		for i, q := range op.Requests {
			c.done = append(c.done, granted{op.Number + i, q.Key, 0, o.results[i]})
		}
	}
	if n := len(c.done); n > 4 {
		c.done = c.done[n-4:]
	}
}

// record notes what happens between a call and its return. An operation of which it is
// certain that nothing happened is not recorded.
func (c *client) record(op *call, do func(*record) error) {
	r := record{Scene: c.scene.number, Process: c.process.number, Client: c.client, Call: c.clock.tick()}
	_, from := c.clock.now()
	err := do(&r)
	if len(op.Clocks) == 0 {
		op.Clocks = c.clock.since(from, c.clock.skew)
	}
	r.Return, r.Op = c.clock.tick(), op.Op
	if err != nil {
		f, nothing := fault(err)
		if nothing {
			return
		}
		r.Out = model.Out{Lost: f == "", Fault: f, Steps: r.Out.Steps, DeniedBy: -1}
		r.Sources, r.Err = nil, err.Error()
	}
	c.records = append(c.records, r)
}

// lose sometimes makes the next answer get lost: its caller leaves, or the connection
// closes.
func (c *client) lose(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Loses {
		switch c.rand.IntN(24) {
		case 0:
			return context.WithTimeout(ctx, time.Duration(c.rand.IntN(2000))*time.Microsecond)
		case 1:
			c.cut.Store(true)
		}
	}
	return ctx, func() {}
}
