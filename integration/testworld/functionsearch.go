package testworld

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
	"github.com/pglimit/pglimit/policies"
)

// SearchFunctions searches each of the bases: the functions and the library, on the same
// keys, answer as the library alone, and leave the same rows. functions.Q may be a pool whose
// rows cannot be compared. Default: a new database.
func SearchFunctions(t *testing.T, d search.Draw, histories int, functions Functions, bases ...limiter.Policy) {
	t.Helper()
	pool, given := functions.Q.(*pgxpool.Pool)
	if !given {
		pool = FunctionsPool(t)
		functions.Q = pool
	}
	d.Equal = true
	Search(t, d, histories, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := NewSubject(t)
			f := functions
			config.IdempotencyTTL = 0 // as the functions have it
			f.Now = s.Clock.Now
			if f.ByName {
				var stored limiter.Policy
				f.Store = func(p limiter.Policy) {
					if p != stored {
						StorePolicy(t, pool, p, false)
						stored = p
					}
				}
				inMemory := s.Apply
				s.Apply = func(edit policies.Edit) error {
					for _, o := range edit.SetOverrides {
						storeOverride(t, pool, o)
					}
					for _, o := range edit.DeleteOverrides {
						Exec(t, pool, `DELETE FROM pglimit_override WHERE policy = $1 AND key = $2`, o.Policy, o.Key)
					}
					return inMemory(edit)
				}
			}
			s.Alike = func(step *search.Step, got, want limiter.Result) bool {
				if (step.Op == "all" || step.Op == "any" || step.Op == "split" || step.Op == "reserve_all") && want.Source == limiter.SourceSkipped {
					return !got.Allowed
				}
				if want.Policy.Shadow { // the functions let it pass at once
					got.Delay = want.Delay
				}
				if given { // other calls may have brought rows up to date
					return search.Rounded(step, common(got), common(want))
				}
				return common(got) == common(want)
			}
			if !f.EndsAt && !given { // a window with the caller's end has no period
				s.Rows = func() (string, error) { return rowsOf(pool, s.Prefix) }
			}
			s.Model = func() search.Subject {
				m, config := NewSubject(t)
				m.Clock, config.Now, config.IdempotencyTTL = s.Clock, s.Clock.Now, 0
				m.Ways = search.By(NewLimiter(t, pool, config))
				if s.Rows != nil {
					m.Rows = func() (string, error) { return rowsOf(pool, m.Prefix) }
				}
				return m
			}
			l := NewLimiter(t, pool, config)
			f.Limiter = l
			s.Ways = append([]search.Way{{Limiter: &f}}, search.By(l)...)
			return s
		}
	}, bases...)
}

// common keeps the fields of a Result that the functions return too.
func common(r limiter.Result) limiter.Result {
	return limiter.Result{Allowed: r.Allowed, Granted: r.Granted, Remaining: r.Remaining, Level: r.Level, RetryAfter: r.RetryAfter, ResetAfter: r.ResetAfter,
		Delay: r.Delay, Reason: r.Reason, Replayed: r.Replayed, Expired: r.Expired, Shadowed: r.Shadowed}
}

// rowsOf returns the rows of policies whose names begin with a prefix, but for that, with
// columns that the answers do not show, such as when a row may be deleted, but for how many requests came last.
func rowsOf(pool *pgxpool.Pool, prefix string) (all string, err error) {
	var tables []string
	for _, a := range append(algorithm.Tables[:], algorithm.Balance, "reservation", "attempt", "slot") {
		tables = append(tables, fmt.Sprintf(`
			SELECT '%[1]s ' || (to_jsonb(t) - 'id' - 'tickets' - 'ids' - 'requested' || jsonb_build_object('policy', substr(t.policy, length($1) + 1)))::text AS line
			FROM pglimit_%[1]s AS t WHERE starts_with(t.policy, $1)`, a))
	}
	err = pool.QueryRow(context.Background(), `SELECT coalesce(string_agg(line, E'\n' ORDER BY line), '') FROM (`+strings.Join(tables, " UNION ALL ")+`) AS lines`, prefix).Scan(&all)
	return all, err
}
