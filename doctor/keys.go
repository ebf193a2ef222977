package doctor

import (
	"context"
	"fmt"

	"github.com/pglimit/pglimit/internal/printable"
	"github.com/pglimit/pglimit/janitor"
)

// nearlyFull is the part of a policy's MaxKeys from which on the check warns.
const nearlyFull = 0.9

func checkKeys(ctx context.Context, p *patient) (Check, error) {
	s, err := janitor.ReadStateSQL(ctx, p.db)
	if err != nil {
		return Check{}, err
	}
	return judgeKeys(s), nil
}

// judgeKeys judges how much room policies with MaxKeys have for new keys. A sweep may make some
// if rows are due.
func judgeKeys(s janitor.State) Check {
	all, sweep := s.Bounded, ""
	if s.DueRows > 0 {
		sweep = "pglimit janitor --once"
	}
	if len(all) == 0 {
		return Check{Message: "no policy with MaxKeys has had a key"}
	}
	c := Check{Message: fmt.Sprintf("all of %s with MaxKeys have room for new keys", printable.Count(len(all), "policy"))}
	for _, b := range all {
		if b.Share() < nearlyFull {
			continue
		}
		what := "nearly full"
		if b.Keys >= b.MaxKeys {
			what = "full, so that new keys are denied or share a row"
		}
		c = worse(c, Check{Verdict: Warn,
			Details:  []string{fmt.Sprintf("policy %s, %s: %d of %d keys have a row: it is %s", b.Policy, b.Algorithm, b.Keys, b.MaxKeys, what)},
			Fix:      sweep,
			NextStep: "see who makes up keys with `pglimit top`, limit the address first, or raise MaxKeys by `pglimit policy set POLICY --max-keys N`"})
	}
	if c.Verdict != OK {
		c.Message = fmt.Sprintf("%d of %s are at 90 %% of their MaxKeys or more: %s", len(c.Details), printable.Count(len(all), "policy"), c.Details[0])
	}
	return c
}
