package prove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/pglimit/internal/pooler"
	"github.com/pglimit/pglimit/limiter"
)

const (
	requestTimeout = 10 * time.Second // of one request; long, because a busy server is not a failed one
	killEvery      = 250 * time.Millisecond
)

// dbClient sends requests over one pool.
type dbClient struct {
	*limiter.Limiter
	pool *pgxpool.Pool
}

// newClients opens n pools to the database of pool, with a connection for each worker.
// The last client has one more pool with a single connection; it locks rows. On the
// server the connections have the application name name, which identifies them.
func newClients(ctx context.Context, pool *pgxpool.Pool, name string, n, workers int) (all []*dbClient, err error) {
	defer func() {
		if err != nil {
			closeAll(all)
		}
	}()
	for i := range n + 1 {
		cfg := pool.Config()
		cfg.ConnConfig.RuntimeParams["application_name"] = name
		cfg.MaxConns = int32((workers + n - 1) / n)
		if i == n {
			cfg.MaxConns = 1
		}
		cfg.MinConns, cfg.MinIdleConns = 0, 0
		own, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return all, fmt.Errorf("connect: %w", err)
		}
		all = append(all, &dbClient{pool: own})
		if err := connectAll(ctx, own); err != nil {
			return all, err
		}
		if all[i].Limiter, err = limiter.New(own, &limiter.Config{Timeout: requestTimeout, DisableDenyCache: true}); err != nil {
			return all, err
		}
	}
	return all, nil
}

// connectAll opens all of a pool's connections in advance.
func connectAll(ctx context.Context, pool *pgxpool.Pool) error {
	most := int(pool.Config().MaxConns)
	var held []*pgxpool.Conn
	defer func() {
		for _, c := range held {
			c.Release()
		}
	}()
	for range most {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return fmt.Errorf("open a connection for each worker: use fewer workers, or give the server more connections: %w", err)
		}
		held = append(held, c)
	}
	return nil
}

func closeAll(clients []*dbClient) {
	for _, c := range clients {
		c.pool.Close()
	}
}

// InTx is for [contest.Client].
func (c *dbClient) InTx(ctx context.Context, commit bool, do func(limiter.Decider) error) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	tx, err := c.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	err = do(c.Limiter.InTx(tx))
	if err != nil || !commit {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

// killNowAndThen lets the server end one of the connections called name every
// killEvery. It returns how many were ended.
func killNowAndThen(ctx context.Context, pool *pgxpool.Pool, name string) (killed int64, err error) {
	tick := time.NewTicker(killEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return killed, nil
		case <-tick.C:
		}
		tag, err := pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM (
			SELECT pid FROM pg_stat_activity
			WHERE application_name = $1 AND usename = current_user AND datname = current_database()
			ORDER BY random() LIMIT 1) AS victim`, pooler.Mode(pool), name)
		if err != nil && ctx.Err() == nil {
			return killed, fmt.Errorf("end one of the proof's connections: %w", err)
		}
		killed += tag.RowsAffected()
	}
}
