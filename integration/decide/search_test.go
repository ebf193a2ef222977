package decide

import (
	"database/sql"
	"testing"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/internal/conformance/search"
)

// TestDecideAsMemory: over each driver, and in the caller's transaction and its savepoints,
// statements decide as a limiter in memory, to the last bit.
func TestDecideAsMemory(t *testing.T) {
	t.Parallel()
	address := bed.NewDatabase(t)
	pool := bed.Connect(t, address)
	var dbs []*sql.DB
	for _, driver := range bed.SQLDrivers {
		dbs = append(dbs, bed.ConnectSQL(t, driver, address))
	}
	d := search.Draw{Equal: true, Operations: search.Without(search.Usual, "sweep")}
	bed.Search(t, d, 20, func(t *testing.T) func(*search.History) search.Subject {
		return func(*search.History) search.Subject {
			s, config := bed.NewSubject(t)
			s.Ways, s.Begin = search.By(bed.NewLimiter(t, pool, config)), pool.Begin
			for _, db := range dbs {
				s.Ways = append(s.Ways, search.By(bed.NewSQL(t, db, config))...)
			}
			return s
		}
	})
}
