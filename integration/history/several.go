//go:build unix

package history

import (
	"fmt"
	"slices"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// drawSet draws an operation of several keys, or of one of them.
func (c *client) drawSet(op *model.Op) {
	sets := []model.Verb{model.AllowAny, model.Split, model.AllowAll, model.ReserveAll}
	verbs := append(slices.Concat(sets, sets, sets), model.SettleAll, model.SettleAll, model.CancelAll, model.CancelAll, model.Settle, model.Cancel,
		model.Allow, model.Charge, model.Refund, model.Check, model.Usage, model.Block, model.Unblock, model.Reset)
	op.Verb = verbs[c.rand.IntN(len(verbs))]
	if op.Verb == model.Split && c.process.number < 2 {
		op.Verb = model.AllowAny // its answer does not tell what is remembered of the first pool
	}
	if op.Verb == model.SettleAll || op.Verb == model.CancelAll {
		c.drawEnds(op)
	}
	switch {
	case len(op.Requests) > 0:
	case op.Verb.Sets():
		keys := c.rand.Perm(len(c.plans))
		keys = keys[:2+c.rand.IntN(len(keys)-1)]
		if c.Idempotent && c.rand.IntN(2) == 0 {
			op.Idem = 10*(1+slices.Index(sets, op.Verb)) + c.rand.IntN(2)
			op.Units, keys = float64(1+op.Idem%2), keys[:2]
			slices.Sort(keys)
		}
		switch op.Verb {
		case model.Split:
			op.Units *= 4
		case model.ReserveAll:
			op.For = 1000 * unit
		}
		for _, key := range keys {
			op.Requests = append(op.Requests, model.Request{Key: key, Policy: c.plans[key][c.rand.IntN(len(c.plans[key]))], Units: op.Units})
		}
	case op.Policy.Algorithm == limiter.Balance && c.rand.IntN(2) == 0:
		op.Verb = model.Add
		fallthrough
	default:
		c.fill(op)
	}
}

// drawEnds draws the ends of the last reservations of some keys.
func (c *client) drawEnds(op *model.Op) {
	n, ends := len(c.board.posted()), map[int]bool{}
	for id := n - c.rand.IntN(4); id > max(0, n-8) && len(ends) < 2; id-- {
		if key := c.board.key(id); !ends[key] {
			ends[key], op.Requests = true, append(op.Requests, model.Request{Key: key, Policy: c.plans[key][0], Units: op.Units - 1, Held: id})
		}
	}
	if op.Units--; len(ends) == 0 {
		op.Verb, op.Units = model.ReserveAll, 1
	}
}

// askedApart makes a record of each request that an AllowAny made, until one was granted. Under an
// idempotency key it is one operation.
func askedApart(all []record) (apart []record, err error) {
	for _, r := range all {
		if r.Op.Verb != model.AllowAny || r.Op.Idem != 0 || r.Out.Lost || r.Out.Fault != "" {
			apart = append(apart, r)
			continue
		}
		gave := r.Out.All.DeniedBy
		for i, a := range r.Out.All.PerRequest {
			switch asked := a != (limiter.Result{}); {
			case asked != (gave < 0 || i <= gave), (a.Granted > 0) != (i == gave), r.Out.All.Allowed != (gave >= 0):
				return nil, fmt.Errorf("scene %d: pool %d of %s", r.Scene, i, describe(&r.Op, &r.Out))
			case asked:
				one := r
				one.Op, one.Out = *r.Op.One(i), model.Out{Answer: model.Answer{Result: a}}
				apart = append(apart, one)
			}
		}
	}
	return apart, nil
}
