package statement

import (
	"fmt"
	"testing"

	"github.com/pglimit/pglimit/internal/algorithm"
	"github.com/pglimit/pglimit/internal/store"
)

// TestBatchSendsEqualNumbersOnce: an array other than keys has one element if all rows
// have the same number, else one for each row. A batch is used again for others.
func TestBatchSendsEqualNumbersOnce(t *testing.T) {
	t.Parallel()
	row := func(policy, key string, count int64, capacity float64, edges store.Edges) *store.Row {
		q := &store.Query{Policy: policy, Key: key, Edges: edges}
		q.Algorithm, q.Cost, q.Capacity, q.Period = algorithm.FixedWindow, 1, capacity, 60
		if edges.Until > 0 {
			q.Calendar, q.Period = new(algorithm.Calendar), 0
		}
		return &store.Row{Query: q, Count: count}
	}
	day := store.Edges{From: 1, Turn: 2, Until: 3}
	b := new(batch)
	for _, c := range []struct {
		rows []*store.Row
		want string // policies, keys, costs, counts, capacities, periods, turns
	}{
		{[]*store.Row{row("p", "a", 1, 5, store.Edges{})}, "[p] [a] [1] [1] [5] [60] []"},
		{[]*store.Row{row("p", "a", 1, 5, store.Edges{}), row("p", "b", 1, 5, store.Edges{})}, "[p] [a b] [1] [1] [5] [60] []"},
		{[]*store.Row{row("p", "a", 1, 5, store.Edges{}), row("q", "b", 2, 6, store.Edges{}), row("q", "c", 2, 5, store.Edges{})}, "[p q q] [a b c] [1] [1 2 2] [5 6 5] [60] []"},
		{[]*store.Row{row("p", "a", 1, 5, day), row("p", "b", 1, 5, day)}, "[p] [a b] [1] [1] [5] [0] [2]"},
		{[]*store.Row{row("p", "a", 1, 5, store.Edges{}), row("q", "b", 1, 5, day), row("p", "c", 1, 5, store.Edges{})}, "[p q p] [a b c] [1] [1] [5] [60 0 60] [0 2]"},
		{[]*store.Row{row("q", "a", 1, 5, day), row("q", "b", 1, 5, day), row("p", "c", 1, 5, store.Edges{})}, "[q q p] [a b c] [1] [1] [5] [0 0 60] [2]"},
	} {
		b.set(c.rows, nil)
		got := fmt.Sprint(b.policies, b.keys, b.costs, b.counts, b.capacities, b.periods, b.turns)
		if got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		for _, r := range c.rows {
			if b.row(r.Query.Policy, r.Query.Key) != r {
				t.Errorf("%s: the row of %s and %s was not found", c.want, r.Query.Policy, r.Query.Key)
			}
		}
		if r := b.row("other", "a"); r != nil {
			t.Errorf("%s: a row was found for another policy", c.want)
		}
	}
}
