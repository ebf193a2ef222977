package bed

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/migrations"
)

// distribute distributes the tables over the workers, if the server is a Citus cluster.
func distribute(ctx context.Context, pool *pgxpool.Pool) error {
	if len(server.Workers()) == 0 {
		return nil
	}
	_, err := migrations.Distribute(ctx, pool, migrations.Distribution{Shards: 8})
	return err
}
