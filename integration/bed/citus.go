package bed

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// distribute distributes the tables over the workers, if the server is a Citus cluster.
func distribute(ctx context.Context, pool *pgxpool.Pool) error {
	if len(server.Workers()) == 0 {
		return nil
	}
	_, err := pool.Exec(ctx, `DO $$
		DECLARE name text; first text;
		BEGIN
			FOREACH name IN ARRAY ARRAY['token_bucket','leaky_bucket','leaky_bucket_queue','gcra','fixed_window','sliding_window_counter','sliding_window_log','reservation','denial'] LOOP
				PERFORM create_distributed_table('pglimit_' || name, 'key', colocate_with => coalesce(first, 'none'), shard_count => CASE WHEN first IS NULL THEN 8 END);
				first := 'pglimit_token_bucket';
			END LOOP;
		END $$`)
	return err
}
