//go:build unix

package history

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// transaction does a few verbs in a transaction of the caller, with savepoints, and commits
// it or rolls it back: one operation. Its first verb locks the rows that the others use.
// From then on no other client can change them, so the transaction is of one moment.
func (c *client) transaction() {
	op := &model.Op{Number: c.number(), Verb: model.Tx, Commits: c.rand.IntN(3) > 0}
	steps := c.drawSteps()
	ctx, cancel := c.lose(context.Background())
	defer cancel()
	c.record(op, func(r *record) error {
		life := c.life.Load()
		tx, err := life.pool.Begin(ctx)
		if err != nil {
			op.Commits = false // nothing was sent
			return err
		}
		defer func() { _ = tx.Rollback(context.Background()) }() // no effect after its end
		l := life.limiter.InTx(tx)
		for i := range steps {
			step := &steps[i]
			_, from := c.clock.now()
			o, err := c.step(ctx, tx, l, step)
			step.Clocks = c.clock.since(from)
			if err != nil {
				fault, _ := fault(err)
				if fault == "" {
					op.Commits = false
					return err
				}
				o = model.Out{Answer: model.Answer{Fault: fault}}
			}
			op.Steps, r.Out.Steps = append(op.Steps, *step), append(r.Out.Steps, o)
		}
		if op.Commits {
			return tx.Commit(ctx)
		}
		_ = tx.Rollback(ctx) // if it fails, the connection is gone and the transaction with it
		return nil
	})
}

// step does one step of a transaction.
func (c *client) step(ctx context.Context, tx pgx.Tx, l *limiter.Tx, step *model.Op) (o model.Out, err error) {
	const name = "kept"
	switch step.Verb {
	case model.Savepoint:
		_, err = tx.Exec(ctx, "SAVEPOINT "+name)
	case model.Forget:
		_, err = tx.Exec(ctx, "RELEASE SAVEPOINT "+name)
	case model.Back:
		_, err = tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+name)
	default:
		return c.send(ctx, l, step)
	}
	return o, err
}

// drawSteps draws the steps of a transaction.
func (c *client) drawSteps() (steps []model.Op) {
	if c.Attempts || c.Slots { // a transaction may wait for one that waits for it, if it uses two keys
		return []model.Op{c.draw(true)}
	}
	if c.rand.IntN(3) == 0 { // any single one
		step := c.draw(true)
		if step.Verb == model.Check && c.rand.IntN(2) == 0 && c.Reserves {
			step.Verb = []model.Verb{model.Settle, model.Cancel}[c.rand.IntN(2)]
			c.fill(&step)
		}
		return []model.Op{step}
	}
	locked := []int{c.rand.IntN(len(c.plans))}
	first := model.Op{Number: c.number(), Verb: model.Allow, InTx: true, Units: float64(1 + c.rand.IntN(3))}
	c.aim(&first, locked[0])
	switch {
	case len(c.plans) > 1 && c.rand.IntN(2) == 0:
		first.Verb, locked = model.AllowAll, nil
		c.fill(&first)
		for i := range c.plans {
			locked = append(locked, i)
		}
	case c.rand.IntN(3) == 0:
		first.Verb = model.Charge
	}
	steps = []model.Op{first}
	for range 1 + c.rand.IntN(2) {
		saves := c.rand.IntN(2) == 0
		if saves {
			steps = append(steps, model.Op{Verb: model.Savepoint})
		}
		steps = append(steps, c.drawLocked(locked))
		if saves {
			end := []model.Verb{model.Forget, model.Back}[c.rand.IntN(2)]
			steps = append(steps, model.Op{Verb: end})
		}
	}
	return steps
}

// drawLocked draws a verb for one of the keys that the transaction has locked.
func (c *client) drawLocked(locked []int) model.Op {
	for {
		op := c.draw(true)
		if slices.Contains(locked, op.Key) && op.Idem == 0 && op.Verb != model.Undo {
			return op
		}
	}
}
