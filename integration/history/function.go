//go:build unix

package history

import (
	"context"
	"slices"
	"time"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/integration/testworld"
)

// functions are the verbs that have a SQL function.
var functions = []model.Verb{
	model.Allow, model.AllowUpTo, model.Check, model.Charge, model.Add, model.Refund, model.Block, model.Unblock, model.Reset,
	model.Reserve, model.ReserveUpTo, model.Settle, model.Cancel,
}

// function does a verb by a SQL function, of this process's pool.
func (c *client) function() {
	op := c.draw(false)
	for !slices.Contains(functions, op.Verb) || op.Idem != 0 {
		op = c.draw(false)
	}
	us, _ := c.clock.now()
	op.SQL, op.Clocks, op.Remember = true, []int64{us + c.clock.skew}, (24 * time.Hour).Microseconds()
	f := &testworld.Functions{Q: c.life.Load().pool, Now: func() time.Time { return time.UnixMicro(us + c.clock.skew) }}
	if c.rand.IntN(2) == 0 || op.Policy.Calendar != "" || c.Balances { // by name it is the first plan, which is stored
		op.Policy, f.ByName = c.plans[op.Key][0], true
	}
	ctx, cancel := c.lose(context.Background())
	defer cancel()
	c.record(&op, func(r *record) (err error) {
		r.Out, err = c.send(ctx, f, &op)
		return err
	})
}
