package prove

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/internal/prove/contest"
	"github.com/pglimit/pglimit/limiter"
)

const (
	cleanupTimeout = 5 * time.Second
	leaveEvery     = 10 * time.Millisecond
)

// Queries for whether connections of the proof still exist, and whether any is busy. A
// pooler keeps idle connections for later clients, under the name of the last client.
const (
	stillThere = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1)"
	stillBusy  = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND state <> 'idle')"
)

// cleanUp deletes all rows of the run. The server may still execute a request of a
// disconnected client, which would create rows later. So cleanUp first waits until the
// connections called name are gone or, behind a pooler, idle. Then it deletes until
// no row is left.
func cleanUp(ctx context.Context, pool *pgxpool.Pool, name, run string, behindPooler bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	inTheWay := stillThere
	if behindPooler {
		inTheWay = stillBusy
	}
	for {
		err := untilFalse(ctx, pool, inTheWay, name)
		var deleted int64
		if err == nil {
			deleted, err = deleteAll(ctx, pool, run)
		}
		if err != nil {
			return fmt.Errorf("clean up: %w; %s", err, byHand(run))
		}
		if deleted == 0 {
			return nil
		}
	}
}

// deleteAll deletes the rows of the run, and returns their number.
func deleteAll(ctx context.Context, pool *pgxpool.Pool, run string) (deleted int64, err error) {
	tables := []string{"pglimit_reservation"}
	for _, a := range limiter.Algorithms() {
		tables = append(tables, "pglimit_"+string(a))
	}
	for _, table := range tables {
		tag, err := pool.Exec(ctx, "DELETE FROM "+pgx.Identifier{table}.Sanitize()+" WHERE policy = ANY ($1::text[])",
			pooler.Mode(pool), contest.PolicyNames(run))
		if err != nil {
			return deleted, err
		}
		deleted += tag.RowsAffected()
	}
	return deleted, nil
}

// byHand returns the instruction for the user if cleaning up failed.
func byHand(run string) string {
	return fmt.Sprintf("delete the rows whose policy begins with %s from pglimit's tables", contest.Prefix(run))
}

// untilFalse waits until a query about the connections called name returns false.
func untilFalse(ctx context.Context, pool *pgxpool.Pool, query, name string) error {
	tick := time.NewTicker(leaveEvery)
	defer tick.Stop()
	for {
		var is bool
		err := pool.QueryRow(ctx, query, pooler.Mode(pool), name).Scan(&is)
		if err != nil || !is {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the proof's connections do not end: %w", ctx.Err())
		case <-tick.C:
		}
	}
}
