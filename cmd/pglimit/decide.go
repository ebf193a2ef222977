package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/limiter"
)

// verb is a method of Limiter that answers an ask.
type verb func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

// decide runs a verb over the database and shows its Result; say tells it to a
// person. A denial is errDenied.
func (a *app) decide(cmd *cobra.Command, f *policyFlags, key string, do verb, say func(limiter.Result) string) error {
	p, err := f.read()
	if err != nil {
		return err
	}
	return a.withLimiter(cmd, func(l *limiter.Limiter) error {
		r, err := do(l, cmd.Context(), p, key, f.cost)
		if err != nil {
			return decisionError(err)
		}
		return a.answer(cmd, r, say(r))
	})
}

// withLimiter opens the database for as long as f runs.
func (a *app) withLimiter(cmd *cobra.Command, f func(*limiter.Limiter) error) error {
	pool, err := a.open(cmd)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := newLimiter(pool)
	if err != nil {
		return err
	}
	return f(l)
}

// answer shows a Result, and is errDenied if that is the answer.
func (a *app) answer(cmd *cobra.Command, r limiter.Result, text string) error {
	if err := a.print(cmd, r, text+"\n"); err != nil {
		return err
	}
	if !r.Allowed {
		return errDenied
	}
	return nil
}

// order is what block, unblock and reset did, in JSON.
type order struct {
	Verb      string            `json:"verb"`
	Name      string            `json:"name"`
	Algorithm limiter.Algorithm `json:"algorithm"`
	Key       string            `json:"key"`
	For       float64           `json:"for_s,omitempty"`
}

// order runs a verb that has no Result; o has the verb's name and the key.
func (a *app) order(cmd *cobra.Command, f *policyFlags, o order, text string, do func(*limiter.Limiter, limiter.Policy) error) error {
	p, err := f.readRow()
	if err != nil {
		return err
	}
	o.Name, o.Algorithm = p.Name, p.Algorithm
	return a.withLimiter(cmd, func(l *limiter.Limiter) error {
		if err := do(l, p); err != nil {
			return decisionError(err)
		}
		return a.print(cmd, o, fmt.Sprintf("%s (%s, %s)\n", text, p.Name, p.Algorithm))
	})
}

// rowHelp says which flags matter to a verb that has no ask.
const rowHelp = `A key is found by --name and --algorithm, which have to be those that the asks
were made with; limit, period and burst do not matter.`
