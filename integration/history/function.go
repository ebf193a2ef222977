//go:build unix

package history

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/integration/history/model"
)

// functionNames are the names of the SQL functions.
var functionNames = map[model.Verb]string{
	model.Allow: "allow", model.AllowUpTo: "allow_up_to", model.Check: "check", model.Charge: "charge", model.Refund: "refund",
	model.Block: "block", model.Unblock: "unblock", model.Reset: "reset",
	model.Reserve: "reserve", model.Settle: "settle", model.Cancel: "cancel",
}

// function does a verb by a SQL function, of this process's pool.
func (c *client) function() {
	op := c.draw(false)
	for functionNames[op.Verb] == "" || op.Idem != 0 {
		op = c.draw(false)
	}
	us, _ := c.clock.now()
	now := time.UnixMicro(us + c.clock.skew)
	op.SQL, op.Clocks, op.Remember = true, []int64{us + c.clock.skew}, (24 * time.Hour).Microseconds()
	ctx, cancel := c.lose(context.Background())
	defer cancel()
	numbers := c.rand.IntN(2) == 0
	if !numbers || op.Policy.Calendar != "" || op.Verb == model.Reserve { // by name it is the first plan
		numbers, op.Policy = false, c.plans[op.Key][0]
	}
	c.record(&op, func(r *record) error {
		o, err := c.sendSQL(ctx, &op, now, numbers)
		r.Out = o
		return err
	})
}

// sendSQL calls the function of a verb.
func (c *client) sendSQL(ctx context.Context, op *model.Op, now time.Time, numbers bool) (o model.Out, err error) {
	p, name := op.Policy, functionNames[op.Verb]
	var rows pgx.Rows
	switch op.Verb {
	case model.Settle:
		rows, err = c.pool.Query(ctx, "SELECT * FROM pglimit.settle($1, $2, now => $3)", c.board.posted()[op.Held-1], op.Units, now)
	case model.Cancel:
		rows, err = c.pool.Query(ctx, "SELECT pglimit.cancel($1, now => $2)", c.board.posted()[op.Held-1], now)
	case model.Reserve:
		rows, err = c.pool.Query(ctx, "SELECT * FROM pglimit.reserve($1, $2, $3, ttl_s => $4, now => $5)", p.Name, c.scene.name, op.Units, float64(op.For)/1e6, now)
	case model.Block, model.Unblock, model.Reset:
		cost := float64(op.For) / 1e6
		_, err = bed.CallFunction(ctx, c.pool, p, name, c.scene.name, cost, &now)
		return o, err
	default:
		if numbers {
			o.Result, err = bed.CallFunction(ctx, c.pool, p, name, c.scene.name, op.Units, &now)
			return o, err
		}
		rows, err = c.pool.Query(ctx, fmt.Sprintf("SELECT * FROM pglimit.%s($1, $2, $3, now => $4)", name), p.Name, c.scene.name, op.Units, now)
	}
	if err != nil {
		return o, err
	}
	if op.Verb == model.Cancel {
		rows.Close()
		return o, rows.Err()
	}
	row, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByNameLax[functionRow])
	if err != nil {
		return o, err
	}
	o.Result = bed.FunctionResult{
		Allowed: row.Allowed, Granted: row.Granted, Remaining: row.Remaining, Level: row.Level,
		RetryAfterS: row.RetryAfterS, ResetAfterS: row.ResetAfterS, DelaysS: row.DelayS, Reason: row.Reason, Shadowed: row.Shadowed,
	}.Result()
	o.Result.Replayed, o.Result.Expired = row.Replayed, row.Expired
	if row.Reservation != nil {
		c.reserved(&o, *row.Reservation, *row.ExpiresAt)
	}
	return o, nil
}

// functionRow has the columns of all functions.
type functionRow struct {
	Allowed                          bool
	Granted, Remaining, Level        float64
	RetryAfterS, ResetAfterS, DelayS *float64
	Reason                           *string
	Shadowed, Replayed, Expired      bool
	Reservation                      *string
	ExpiresAt                        *time.Time
}
