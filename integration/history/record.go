//go:build unix

package history

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglimit/pglimit/integration/history/model"
	"github.com/pglimit/pglimit/limiter"
)

// fault sorts an error. It returns the fault that the model knows, or else whether it is certain
// that nothing has changed.
func fault(err error) (fault string, nothing bool) {
	var state *pgconn.PgError
	switch {
	case errors.Is(err, limiter.ErrNoReservation), errors.Is(err, limiter.ErrNoTicket), errors.Is(err, limiter.ErrNoSlot):
		return model.Unknown, false
	case errors.Is(err, limiter.ErrReservationEnded):
		return model.Ended, false
	case errors.Is(err, limiter.ErrInvalid):
		return model.Invalid, false
	case errors.Is(err, limiter.ErrOverloaded), errors.Is(err, limiter.ErrLocked), errors.Is(err, limiter.ErrRetryTx):
		return "", true
	case errors.As(err, &state):
		return "", state.Code == "40001" || state.Code == "40P01"
	}
	return "", false
}

// keep keeps answers for an Undo. Requests of a balance that share a statement have all spent from
// the first lot of the first of them.
func (c *client) keep(op *model.Op, o model.Out) {
	if c.Balances && batches(c.process.number) {
		return
	}
	switch op.Verb {
	case model.Allow, model.AllowUpTo:
		c.done = append(c.done, granted{op.Number, op.Key, op.Policy, o.Result})
	case model.AllowAll:
		for i, q := range op.Requests {
			c.done = append(c.done, granted{op.Number + i, q.Key, q.Policy, o.All.PerRequest[i]})
		}
	}
	if n := len(c.done); n > 4 {
		c.done = c.done[n-4:]
	}
}

// record notes what happens between a call and its return. An operation of which it is
// certain that nothing happened is not recorded.
func (c *client) record(op *model.Op, do func(*record) error) {
	r := record{Scene: c.scene.number, Process: c.process.number, Client: c.client, Call: c.clock.tick()}
	_, from := c.clock.now()
	err := do(&r)
	if len(op.Clocks) == 0 {
		op.Clocks = c.clock.since(from)
	}
	r.Return, r.Op = c.clock.tick(), *op
	r.Out.Tell()
	if err != nil {
		f, nothing := fault(err)
		if nothing {
			return
		}
		r.Out = model.Out{Lost: f == "", Answer: model.Answer{Fault: f}, Steps: r.Out.Steps}
		r.Err = err.Error()
	}
	c.records = append(c.records, r)
}

// lose sometimes makes the next answer get lost: its caller leaves, or the connection
// closes.
func (c *client) lose(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.Loses {
		switch c.rand.IntN(40) {
		case 0:
			return context.WithTimeout(ctx, time.Duration(c.rand.IntN(2000))*time.Microsecond)
		case 1:
			c.cut.Store(true)
		}
	}
	return ctx, func() {}
}
