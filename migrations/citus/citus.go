// Package citus spreads pglimit's tables over the nodes of a Citus cluster. Create the tables on
// the coordinator first, with package migrations. docs/scale-out.md says what a cluster brings.
package citus

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/cluster"
)

// Distribute spreads the tables of keys over the nodes of a Citus cluster, by key, and
// creates the functions through which statements reach one shard. shards is the number of
// shards of each table; 0 selects that of the distributed tables, or two for each node and
// at least 4. pool must connect to the coordinator as the owner of the tables.
//
// Distribute does in one transaction what is not yet done. Call it again after each [migrations.Up].
// While rows move, decisions wait. Up needs no Distribute. Undo migrations after
// [Undistribute] only.
func Distribute(ctx context.Context, pool *pgxpool.Pool, shards int) error {
	_, err := cluster.Distribute(ctx, pool, cluster.Distribution{Shards: shards})
	return err
}

// Undistribute moves the rows of all shards back to the coordinator, and drops the
// functions of [Distribute].
func Undistribute(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := cluster.Distribute(ctx, pool, cluster.Distribution{Undo: true})
	return err
}

// ErrCluster is returned by [Distribute] and [Undistribute] if the tables cannot be
// distributed there: without Citus, on a worker, without workers, by a role that does not
// own the tables, or with another number of shards than they have. Nothing was changed.
var ErrCluster = cluster.ErrCluster
