package tx

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
)

type wayAlone struct {
	bed.Way
	pool *pgxpool.Pool // to inspect its database
}

// sqlWaysAlone returns all ways, each with a separate database.
func sqlWaysAlone(t *testing.T) (all []wayAlone) {
	t.Helper()
	for i := range bed.Ways(t, bed.NewDatabase(t), false) {
		address := bed.NewDatabase(t)
		all = append(all, wayAlone{bed.Ways(t, address, false)[i], bed.Connect(t, address)})
	}
	return all
}
