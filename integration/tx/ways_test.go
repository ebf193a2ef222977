package tx

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/integration/bed"
	"github.com/pglimit/pglimit/limiter"
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

// inMemory runs a test in transactions of a MemoryDB.
func inMemory(t *testing.T, f func(t *testing.T, w bed.Way, p limiter.Policy)) {
	t.Helper()
	t.Run("NewMemory, InTx", func(t *testing.T) {
		t.Parallel()
		l := limiter.NewMemory(nil)
		w := bed.Way{Name: "NewMemory, InTx", L: l, Begin: func(ctx context.Context) (*bed.Transaction, error) {
			tx, err := (&limiter.MemoryDB{Limiter: l}).Begin(ctx)
			if err != nil {
				return nil, err
			}
			return &bed.Transaction{Tx: l.InTx(tx), Close: func(ctx context.Context, commit bool) error {
				if commit {
					return tx.Commit(ctx)
				}
				return tx.Rollback(ctx)
			}}, nil
		}}
		for _, p := range bed.Variants(10, 1000*time.Hour) {
			f(t, w, p)
		}
	})
}
