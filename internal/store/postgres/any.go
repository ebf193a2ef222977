package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/pglimit/pglimit/db"
	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
	"github.com/pglimit/pglimit/internal/store/postgres/exec"
)

// takeAny takes units from some of the groups, as store.Give divides them, in one transaction.
// Takes of count 0 lock the rows of all in lock order, and return their state: what that has
// room for still fits in the second round trip. A denial takes nothing.
func (p Store) takeAny(ctx context.Context, tx db.DBTX, groups []*store.Group, partial bool) (allowed bool, err error) {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g *store.Group) bool { return g.Full })
	if len(groups) == 0 {
		return partial, nil
	}
	if err := exec.Together(ctx, tx, p.takes(ctx, groups, 0)); err != nil {
		return false, err
	}
	if err := p.unlessAdmitted(ctx, tx, groups); err != nil {
		return false, err
	}
	allowed = store.Give(groups, partial)
	var given, refused []*store.Group // of the units that each gives, or could give and does not, in lock order
	var reads []exec.Call
	for _, g := range groups {
		one := *g
		q := &one.Query
		q.Units = cmp.Or(g.Given, g.Need)
		q.Cost, q.Unit, q.Count = q.Units, q.Units, 1
		switch {
		case g.Given > 0:
			given = append(given, &one)
			continue
		case g.Need > 0 && g.Possible():
			refused = append(refused, &one)
		}
		if g.Need > 0 && g.Algorithm == algorithm.SlidingWindowLog { // the view is about another number of units
			q.Now = &g.Outcome.UpdatedAt
			reads = append(reads, p.get(ctx, g, *q, func(o store.Outcome) { g.Outcome.View = o.View }))
		}
	}
	if calls := slices.Concat(p.takes(ctx, given, 1), p.records(ctx, refused), reads); len(calls) > 0 {
		err = exec.Together(ctx, tx, calls)
	}
	if err != nil && (!p.tx || err != exec.ErrOtherPeriod) {
		return false, err
	}
	if err != nil || !store.AllFit(given) { // some may be taken
		return false, fmt.Errorf("%w: a row changed while it was locked", store.ErrRetryTx)
	}
	for _, one := range given {
		i := slices.IndexFunc(groups, func(g *store.Group) bool { return g.Index == one.Index })
		groups[i].Outcome = one.Outcome
	}
	return allowed, nil
}
