package decide

import (
	"database/sql"
	"testing"
	"time"

	"github.com/pglimit/pglimit/integration/testworld"
	"github.com/pglimit/pglimit/internal/conformance/search"
	"github.com/pglimit/pglimit/limiter"
)

// attempts is the base of histories of attempts.
var attempts = limiter.Policy{Name: "attempts", Algorithm: limiter.Attempts, Limit: 1, Period: 10 * time.Second, BlockFor: time.Second}

// TestAttemptsAsMemory: over each driver, and in the caller's transaction and its savepoints,
// attempts are decided as by a limiter in memory, to the microsecond, with clocks that are set
// back and a janitor that sweeps.
func TestAttemptsAsMemory(t *testing.T) {
	t.Parallel()
	address := testworld.NewDatabase(t)
	pool := testworld.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range testworld.SQLDrivers {
		dbs = append(dbs, testworld.ConnectSQL(t, driver, address))
	}
	d := search.Draw{Equal: true, Retries: true, Operations: search.Without(search.Attempts, "sweep")}
	testworld.Search(t, d, 100, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := testworld.NewSubject(t)
			s.Apply = nil
			s.Ways, s.Begin = search.By(testworld.NewLimiter(t, pool, config)), pool.Begin
			for _, db := range dbs {
				s.Ways = append(s.Ways, search.By(testworld.NewSQL(t, db, config))...)
			}
			return s
		}
	}, attempts)
}
