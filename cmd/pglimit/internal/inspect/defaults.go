package inspect

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/limiter"
)

// Default returns the default policy of that name of the program that was seen last, and that
// program's name; "" if no program has one.
func (i *Inspector) Default(ctx context.Context, name string) (p limiter.Policy, program string, err error) {
	err = i.read(ctx, func(tx reader) error {
		defaults, err := defaultPolicies(ctx, tx)
		p, program = defaults[name].policy, defaults[name].program
		return err
	})
	return p, program, err
}

// Unstored returns the names of programs' default policies, and of those that have rows.
func (i *Inspector) Unstored(ctx context.Context) (names []string, err error) {
	err = i.read(ctx, func(tx reader) error {
		defaults, err := defaultPolicies(ctx, tx)
		if err != nil {
			return err
		}
		all := make([]string, len(algorithm.Names))
		for n, a := range algorithm.Names {
			from := policies(table(a), "", nil)
			if tx.distributed {
				from = "(SELECT DISTINCT t.policy FROM " + table(a) + " AS t) AS p"
			}
			all[n] = "SELECT p.policy FROM " + from
		}
		rows, err := collect[name](ctx, tx, strings.Join(all, "\nUNION ALL\n"), nil)
		names = slices.Collect(maps.Keys(defaults))
		for _, row := range rows {
			names = append(names, row.Key)
		}
		return err
	})
	return names, err
}
