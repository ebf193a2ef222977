package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// Order is an order as a client sends it. The sender chooses Number: different for each
// order of an account, and the same each time it sends this one.
type Order struct {
	Account, Number string
	Company         string // the company that pays; empty for the account itself
	Cents           int64
}

// OverBudgetError names the budget that has no room for an order, the cents left of it,
// and when it is renewed. That is the zero time if the order exceeds the whole budget.
type OverBudgetError struct {
	Budget  string
	Left    float64
	Renewed time.Time
}

func (e *OverBudgetError) Error() string {
	if e.Renewed.IsZero() {
		return "above the whole " + e.Budget
	}
	return fmt.Sprintf("over the %s: %.0f cents are left until %v", e.Budget, e.Left, e.Renewed)
}

func overBudget(p limiter.Policy, r limiter.Result) error {
	err := &OverBudgetError{Budget: p.Name, Left: r.Remaining}
	if r.RetryAfter != limiter.Never {
		err.Renewed = r.At.Add(r.RetryAfter)
	}
	return err
}

// errTaken means that the account has another order of that number, or that this one is
// older than the memory of its spend (Config.IdempotencyTTL).
var errTaken = errors.New("there is an order of that number")

// place writes an order and spends its cents of its budgets: both, or neither and an
// error. If a budget has no room, the error is an *OverBudgetError. If the connection ends
// on the way, the commit may or may not have happened. After that or any other error place
// the same order again: it is written and counted once.
func (s *shop) place(ctx context.Context, o Order) error {
	spend := spendOne
	if o.Company != "" {
		spend = spendBoth
	}
	// A conflict with another transaction, such as a deadlock, runs all of it again.
	return limiter.RunTx(ctx, s.limits, s.pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
		const insert = `INSERT INTO orders (account, number, company, cents) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`
		written, err := tx.Exec(ctx, insert, o.Account, o.Number, o.Company, o.Cents)
		if err != nil {
			return err
		}
		// The limit comes last: a budget's row stays locked until the transaction ends.
		return spend(ctx, tx, limits, o, written.RowsAffected() == 1)
	})
}

// spendOne takes an order's cents from its account's budget. Under the IdempotencyKey the
// limiter remembers the spend with the order's number. Sent again, the request returns the
// same answer and counts nothing. The order and the remembered spend are committed
// together, so both are new or neither is.
func spendOne(ctx context.Context, _ pgx.Tx, limits *limiter.Tx, o Order, isNew bool) error {
	request := accountBudget.Request(o.Account, float64(o.Cents))
	request.IdempotencyKey = o.Number
	r, err := limits.Do(ctx, request)
	switch {
	case err != nil:
		return err
	case !r.Allowed:
		return overBudget(accountBudget, r)
	case r.Replayed == isNew:
		return errTaken
	}
	return nil
}

// spendBoth takes an order's cents from its account's and its company's budget, or from
// neither. AllowAll has no IdempotencyKey, and needs none here: an existing order was
// committed together with its spend.
func spendBoth(ctx context.Context, tx pgx.Tx, limits *limiter.Tx, o Order, isNew bool) error {
	if !isNew {
		return same(ctx, tx, o)
	}
	requests := []limiter.Request{
		accountBudget.Request(o.Account, float64(o.Cents)),
		companyBudget.Request(o.Company, float64(o.Cents)),
	}
	all, err := limits.AllowAll(ctx, requests...)
	if err != nil {
		return err
	}
	if !all.Allowed {
		return overBudget(requests[all.DeniedBy].Policy, all.PerRequest[all.DeniedBy])
	}
	return nil
}

// same returns nil if the existing order is this one.
func same(ctx context.Context, tx pgx.Tx, o Order) error {
	there := o
	const read = `SELECT company, cents FROM orders WHERE account = $1 AND number = $2`
	if err := tx.QueryRow(ctx, read, o.Account, o.Number).Scan(&there.Company, &there.Cents); err != nil {
		return err
	}
	if there != o {
		return errTaken
	}
	return nil
}
