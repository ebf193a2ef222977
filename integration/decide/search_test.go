package decide

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// TestDecideAsMemory: over each driver, and in the caller's transaction and its savepoints,
// statements decide as a limiter in memory, to the last bit.
func TestDecideAsMemory(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range testworld.SQLDrivers {
		dbs = append(dbs, testworld.ConnectSQL(t, driver, address))
	}
	ways := func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
			for _, db := range dbs {
				s.Ways = append(s.Ways, search.By(testworld.NewSQL(t, db, config))...)
			}
			return s
		}
	}
	testworld.Search(t, search.Draw{Equal: true, Operations: search.Without(search.Usual, "sweep")}, 20, ways)
	testworld.Search(t, search.Draw{Equal: true, Operations: search.Without(search.Estimating, "sweep"), Keys: 1, Names: 1, Steps: 50, Forward: true}, 20, ways, testworld.Holdable()...)
}

// TestLongLogsDecideAsMemory does so with logs whose parts are so short that histories go
// through all of them.
func TestLongLogsDecideAsMemory(t *testing.T) {
	t.Parallel()
	d := search.Draw{Equal: true, Long: true, Steps: 120, Operations: search.Without(search.Usual, "sweep", "once", "reset", "any", "split") + strings.Repeat(" allow", 60)}
	var long limiter.Policy
	for _, base := range search.Bases() {
		if base.Algorithm == limiter.SlidingWindowLog {
			long = base
		}
	}
	for _, step := range []int{1, 2, 3} {
		t.Run(fmt.Sprint("steps of ", step), func(t *testing.T) {
			t.Parallel()
			pool := testworld.FunctionsPool(t)
			testworld.Exec(t, pool, fmt.Sprintf(`CREATE OR REPLACE FUNCTION pglimit_log_step() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT %d'`, step))
			t.Run("histories", func(t *testing.T) {
				d := d
				d.Steps = 60 * (step + 1) // a middle takes a square of steps
				testworld.Search(t, d, 40, func(t *testing.T) func(*search.History) search.Subject {
					return func(*search.History) search.Subject {
						s, config := testworld.NewSubject(t)
						s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
						return s
					}
				}, long)
			})
			if testworld.Value[int](t, pool, `SELECT count(*) FROM pglimit_sliding_window_log WHERE cardinality(middle_entries) > 0`) == 0 {
				t.Error("no log has a middle: this says little")
			}
		})
	}
}
