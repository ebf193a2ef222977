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

// onNodes returns a query of the sum of what a query for a number returns on all nodes.
func onNodes(query string) string {
	if len(server.Workers()) == 0 {
		return query
	}
	return "SELECT sum(result::bigint)::bigint FROM run_command_on_all_nodes($on_node$" + query + "$on_node$)"
}
