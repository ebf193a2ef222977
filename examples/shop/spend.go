package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/limiter"
)

// errTaken means that the account has another order with the same number, or that this one is
// older than the memory of its spend (Config.IdempotencyTTL).
var errTaken = errors.New("there is an order of that number")

// place writes an order and spends its cents of the account's budget: both, or neither and
// an error. The number identifies the order: after an error with an unknown outcome, place
// it again, and it is written and counted once.
func (s *shop) place(ctx context.Context, account, number string, cents int64) error {
	budget, err := s.policies.Get("budget")
	if err != nil {
		return err
	}
	request := budget.Request(account, float64(cents))
	request.IdempotencyKey = number
	// A conflict with another transaction, such as a deadlock, runs all of it again.
	err = limiter.RunTx(ctx, s.limits, s.pool, nil, func(tx pgx.Tx, limits *limiter.Tx) error {
		written, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`, account, number, cents)
		if err != nil {
			return err
		}
		// The limit comes last: a budget's row stays locked until the transaction ends.
		result, err := limits.Do(ctx, request)
		if err != nil {
			return err
		}
		if result.Allowed && result.Replayed == (written.RowsAffected() == 1) {
			return errTaken
		}
		return result.Err() // a denial rolls the order back
	})
	if err != nil {
		return err
	}
	return s.pay(ctx, number)
}

// pay sends a payment when it is its turn: the provider accepts ten a second of all our
// processes together.
func (s *shop) pay(ctx context.Context, number string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.provider, strings.NewReader(number))
	if err != nil {
		return err
	}
	response, err := s.payments.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("payment: %s", response.Status)
	}
	return nil
}

const (
	maxTokens = 100             // of an answer
	ttl       = 5 * time.Minute // longer than any answer takes
)

// complete answers a prompt and returns the tokens used. It reserves the most that an
// answer may use before it asks the model, and settles with what was used.
func (s *shop) complete(ctx context.Context, account, prompt string) (used int, err error) {
	tokens, err := s.policies.Get("tokens")
	if err != nil {
		return 0, err
	}
	// The deadline begins before the reservation, so the answer ends before its units come
	// back by themselves.
	ctx, stop := context.WithTimeout(ctx, ttl)
	defer stop()
	hold, err := s.limits.Reserve(ctx, tokens.Request(account, float64(len(prompt)+maxTokens)), ttl)
	if err == nil { // with an error there is no Result
		err = hold.Result.Err()
	}
	if err != nil {
		return 0, err
	}
	used = model(prompt)
	// The caller may have gone away. The tokens used are still counted. Any process may
	// settle, and repeat it: hold.ID is all that it needs.
	_, err = s.limits.Settle(context.WithoutCancel(ctx), hold.ID, float64(used))
	return used, err
}

// model stands for a model that answers.
func model(prompt string) (used int) { return len(prompt) + maxTokens/2 }
