package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pglimit/pglimit/cmd/pglimit/internal/cli"
	"github.com/pglimit/pglimit/cmd/pglimit/internal/policyflags"
	"github.com/pglimit/pglimit/limiter"
)

// verb is a method of Limiter that answers an ask.
type verb func(*limiter.Limiter, context.Context, limiter.Policy, string, float64) (limiter.Result, error)

// decide runs a verb over the database and shows its Result; say tells it to a
// person. A denial is cli.ErrDenied.
func (a *app) decide(cmd *cobra.Command, f *policyflags.Flags, key string, do verb, say func(limiter.Result) string) error {
	p, err := f.Policy()
	if err != nil {
		return err
	}
	return a.db.WithLimiter(cmd, func(l *limiter.Limiter) error {
		r, err := do(l, cmd.Context(), p, key, f.Cost)
		if err != nil {
			return cli.LimiterError(err)
		}
		return a.out.Answer(cmd, r.Allowed, r, say(r)+"\n")
	})
}
