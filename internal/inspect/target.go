package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// Target is a row to change. In a Forget, Algorithm is "" for what a key has under a policy
// whatever the algorithm: its override.
type Target struct {
	Algorithm   algorithm.Name
	Policy, Key string
}

// compare orders targets as the library locks rows: by algorithm, policy and key. Targets
// without an algorithm come last.
func (t Target) compare(u Target) int {
	index := func(a algorithm.Name) int {
		if a == "" {
			return len(algorithm.Names)
		}
		return a.Index()
	}
	return cmp.Or(cmp.Compare(index(t.Algorithm), index(u.Algorithm)), cmp.Compare(t.Policy, u.Policy), cmp.Compare(t.Key, u.Key))
}

// ErrTooMany is returned by Targets if more rows match than most. It is an ErrInvalid.
var ErrTooMany = fmt.Errorf("%w: too many rows match", store.ErrInvalid)

// Targets lists the rows of the keys under any policy and algorithm of the filter, in lock
// order. traces lists what Forget removes: also keys that have only reservations, denials
// or an override. It returns ErrTooMany if there are more than most. A row that is made
// later is not on the list.
func (i *Inspector) Targets(ctx context.Context, k Keys, f Filter, most int, traces bool) (targets []Target, err error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	if most < 1 || most > 10_000_000 {
		return nil, store.Invalid("max", fmt.Sprint(most), "must be from 1 to 10000000")
	}
	err = i.read(ctx, func(tx pgx.Tx) error {
		m, err := newMatcher(ctx, tx, k)
		if err != nil {
			return err
		}
		var p params
		sql := rowsOf(f, m, most+1, &p)
		if traces {
			sql += "\nUNION\n" + tracesOf(f, m, most+1, &p)
		}
		targets, err = collect[Target](ctx, tx, sql+"\nLIMIT "+p.add(int64(most)+1)+"::bigint", p)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(targets) > most {
		return nil, fmt.Errorf("%w: %s has more than %d rows", ErrTooMany, store.Quote(k.Text), most)
	}
	slices.SortFunc(targets, Target.compare)
	return targets, nil
}

// tracesOf returns a SELECT of what a key leaves outside the limit tables.
func tracesOf(f Filter, m matcher, limit int, p *params) string {
	kept := func(table, alias string) string {
		only := ""
		if f.Algorithm != "" {
			only = " AND " + alias + ".algorithm = " + p.add(string(f.Algorithm)) + "::text"
		}
		return `SELECT f.algorithm, f.policy, f.key FROM ` + policies(table, f.Policy, p) + `, LATERAL (
    SELECT ` + alias + `.algorithm, ` + alias + `.policy, ` + alias + `.key FROM ` + table + ` AS ` + alias + `
    WHERE ` + alias + `.policy = p.policy AND ` + m.on(alias, p) + only + `
    GROUP BY ` + alias + `.policy, ` + alias + `.key, ` + alias + `.algorithm LIMIT ` + p.add(int64(limit)) + `::bigint) AS f`
	}
	sql := kept("pglimit_reservation", "h") + "\nUNION\n" + kept("pglimit_denial", "d")
	if f.Algorithm != "" {
		return sql
	}
	sql += "\nUNION\n" + `SELECT ''::text COLLATE "C", f.policy, f.key FROM ` + policies("pglimit_override", f.Policy, p) + `, LATERAL (
    SELECT o.policy, o.key FROM pglimit_override AS o WHERE o.policy = p.policy AND ` + m.on("o", p) + ` LIMIT ` + p.add(int64(limit)) + `::bigint) AS f`
	only := ""
	if f.Policy != "" {
		only = " AND h.name = " + p.add(f.Policy) + "::text"
	}
	return sql + "\nUNION\n" + `SELECT ''::text COLLATE "C", h.name, h.key FROM pglimit_policy_history AS h WHERE ` + m.on("h", p) + only
}
