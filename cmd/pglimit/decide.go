package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/limiter"
)

// verb is a method of Limiter that answers an ask.
type verb func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

// decide runs a verb over the database and shows its Result; say tells it to a
// person. A denial is cli.ErrDenied.
func (a *app) decide(cmd *cobra.Command, f *policyFlags, key string, do verb, say func(limiter.Result) string) error {
	p, err := f.read()
	if err != nil {
		return err
	}
	return a.withLimiter(cmd, func(l *limiter.Limiter) error {
		r, err := do(l, cmd.Context(), p, key, f.cost)
		if err != nil {
			return cli.LimiterError(err)
		}
		return a.out.Answer(cmd, r.Allowed, r, say(r)+"\n")
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
